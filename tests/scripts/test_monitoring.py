"""Alerts and dashboards name only metrics and labels that are there.

Every expression is parsed and compared with the catalog of metrics, which `tests/support/scrapes.py` compares
with what each component shows.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache

import promql_parser
import pytest
import yaml
from promql_parser import Expr

from scripts.monitoring import alerts, catalog
from tests.support.paths import ROOT

FOLDER = ROOT / "config" / "monitoring"
OF_TARGET = {"job", "instance"}
"""Labels that Prometheus adds to every series."""
VARIABLE = re.compile(r"\$__rate_interval")


def rules() -> dict[str, str]:
    """Return the expressions of the alerts as they are installed, by name."""
    document = yaml.safe_load((FOLDER / "prometheus_rule.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in document["spec"]["groups"] for rule in group["rules"]}


def panels(component: str) -> dict[str, list[str]]:
    """Return the expressions of a dashboard, by panel."""
    document = json.loads((FOLDER / "dashboards" / f"{component}.json").read_text())
    return {panel["title"]: [each["expr"] for each in panel["targets"]] for panel in document["panels"]}


EXPRESSIONS = [
    *(pytest.param(expr, id=name) for name, expr in rules().items()),
    *(
        pytest.param(VARIABLE.sub("5m", expr), id=f"{component}-{title}-{number}")
        for component in catalog.COMPONENTS
        for title, expressions in panels(component).items()
        for number, expr in enumerate(expressions)
    ),
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expression_names_what_is_there(text: str) -> None:
    assert wrong(text) == []


def wrong(text: str) -> list[str]:
    """Return what is wrong with an expression: names of metrics, labels, and values of labels."""
    known, found, used = catalog.series(), [], set[str]()
    for expr in _walk(promql_parser.parse(text)):
        if isinstance(expr, promql_parser.VectorSelector):
            labels = known.get(expr.name or "")
            if labels is None:
                found.append(f"no metric {expr.name}")
                continue
            used |= {*labels, *OF_TARGET}
            found += [
                f"{expr.name} has no label {each.name}"
                for each in expr.matchers.matchers
                if each.name not in {*labels, *OF_TARGET}
            ]
    for expr in _walk(promql_parser.parse(text)):
        if isinstance(expr, promql_parser.AggregateExpr) and expr.modifier:
            found += [
                f"no metric here has the label {each}" for each in expr.modifier.labels if each not in used
            ]
    return found


def _walk(expr: Expr) -> Iterator[Expr]:
    found: list[Expr] = []
    promql_parser.walk(expr, found.append)
    yield from found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("leader", [], id="a gauge"),
        pytest.param("leader_total", ["no metric leader_total"], id="a gauge has no total"),
        pytest.param("rate(tasks[5m])", ["no metric tasks"], id="a counter without its end"),
        pytest.param("sum by (le) (gpu_scheduler_e2e_seconds_bucket)", [], id="buckets"),
        pytest.param(
            'queue_depth{owner="a"} + on (job) leader',
            ["queue_depth has no label owner"],
            id="label of another",
        ),
        pytest.param(
            "sum by (owner) (queue_depth)", ["no metric here has the label owner"], id="grouped by nothing"
        ),
    ],
)
def test_wrong_names_are_found(text: str, says: list[str]) -> None:
    assert wrong(text) == says


def test_values_of_labels_are_written_in_the_code() -> None:
    """`state="unhealthy"` never matches if no code says `unhealthy`."""
    for alert in alerts.ALERTS:
        said = literals(alert.component)
        for expr in _walk(promql_parser.parse(alert.expr)):
            if isinstance(expr, promql_parser.VectorSelector):
                for each in expr.matchers.matchers:
                    if each.name not in {*OF_TARGET, "status"}:
                        assert set(each.value.split("|")) <= said, f"{alert.name}: {each.name}={each.value}"


@cache
def literals(component: str) -> set[str]:
    """Return all strings in the code of a component and of the rooms below it."""
    package = ROOT / "src" / "gpu_orchestrator"
    files = [
        path
        for room in (f"apps/{component}", "engine", "api", "adapters/store")
        for path in (package / room).rglob("*.py")
    ]
    return {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("component", catalog.COMPONENTS)
def test_dashboard_has_a_panel_for_each_metric(component: str) -> None:
    assert list(panels(component)) == [each.shown for each in catalog.families(component)]


def test_names_of_alerts_are_unique() -> None:
    assert len(rules()) == len(alerts.ALERTS)


def test_kustomization_lists_every_dashboard() -> None:
    (generator,) = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    assert generator["files"] == [f"dashboards/{component}.json" for component in catalog.COMPONENTS]
