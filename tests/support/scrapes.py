"""What a component shows at `/metrics`, compared with the catalog of which alerts and dashboards are made."""

import re

from scripts.monitoring import catalog

TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')


def check(component: str, text: str) -> None:
    """Check that a scrape shows the metrics of the catalog and no others, with the labels that are there."""
    known = {each.shown: each.kind for each in catalog.families(component)}
    shown = {name: kind for name, kind in TYPE.findall(text) if not name.endswith("_created")}
    assert shown == known
    labels = catalog.series()
    for name, written in SAMPLE.findall(text):
        if not name.endswith("_created"):
            assert set(LABEL.findall(written)) == set(labels[name]), name
