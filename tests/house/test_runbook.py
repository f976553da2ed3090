"""docs/runbook.md explains every metric, alert, event and log line of the code, and no others."""

import re

from gpu_orchestrator.cli import api_docs
from scripts.monitoring import alerts, catalog
from tests.support import runbook


def test_every_alert_has_its_section() -> None:
    assert runbook.sections("Alerts") == [each.name for each in alerts.ALERTS]


def test_every_metric_is_explained() -> None:
    known = [each.shown for component in catalog.COMPONENTS for each in catalog.families(component)]
    assert sorted(runbook.column("metric")) == sorted(known)


def test_every_reason_of_a_kubernetes_event_is_explained() -> None:
    assert set(runbook.column("reason")) == runbook.event_reasons()


def test_every_event_of_the_manager_is_explained() -> None:
    """The API reference lists them, which test_docs.py of the manager compares with the store."""
    listed = re.findall(r"^\| event \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", api_docs.markdown(), re.MULTILINE)
    events = {name for row in listed[0].splitlines() for name in runbook.CODE.findall(row.split(" | ")[0])}
    assert set(runbook.column("event")) == events


def test_every_log_line_is_explained() -> None:
    lines = runbook.log_lines()
    assert set(runbook.column("line")) == {sentence for sentence, _ in lines}


def test_levels_of_log_lines_are_right() -> None:
    levels = dict[str, set[str]]()
    for sentence, level in runbook.log_lines():
        levels.setdefault(sentence, set()).add(level)
    for row in re.findall(r"^\| (`.+`) \| ([a-z, ]+) \|", runbook.RUNBOOK.read_text(), re.MULTILINE):
        sentences = runbook.CODE.findall(row[0])
        if sentences[0] in levels:
            assert set(row[1].split(", ")) == set.union(*(levels[each] for each in sentences)), row
