"""Dashboards for Grafana: one for each component, with a panel for each of its metrics, whatever its kind."""

import json
from collections.abc import Iterator

from scripts.monitoring.catalog import COMPONENTS, Family, families

TITLES = {
    "operator": "GPU operator: GPUWorkloads",
    "scheduler": "gpu-scheduler: pods, claims and devices",
    "webhook": "GPU webhook: reviews and certificates",
    "agent": "GPU agents: devices and their health",
    "manager": "Cluster manager: tasks, workers and devices",
}
UNITS = {
    "_timestamp_seconds": "s",
    "_seconds": "s",
    "_bytes": "bytes",
    "_mib": "mbytes",
    "_percent": "percent",
    "_ratio": "percentunit",
    "_celsius": "celsius",
    "_watts": "watt",
    "_joules": "watt",
    "_mhz": "suffix: MHz",
}
"""Units of Grafana by the end of a metric's name; a rate of joules is watts."""
SOURCE = {"type": "prometheus", "uid": "${source}"}
PER_DEVICE = ("node", "gpu")
COLUMNS, WIDTH, HEIGHT = 3, 8, 7


def dashboard(component: str) -> str:
    """Return the dashboard of a component as JSON."""
    document = {
        "uid": f"gpu-orchestrator-{component}",
        "title": TITLES[component],
        "description": "Made by `make monitoring` from the code; docs/runbook.md explains each metric.",
        "tags": ["gpu-orchestrator"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables(component))},
        "panels": [_panel(number, component, each) for number, each in enumerate(families(component))],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def files() -> dict[str, str]:
    return {f"{component}.json": dashboard(component) for component in COMPONENTS}


def _variables(component: str) -> Iterator[dict[str, object]]:
    yield {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    chosen = {"agent": ("node", "gpu_agent_healthy"), "manager": ("job", "leader_terms_total")}.get(component)
    if chosen:
        label, metric = chosen
        yield {
            "name": label,
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values({metric}, {label})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
        }


def _panel(number: int, component: str, family: Family) -> dict[str, object]:
    queries = list(_queries(component, family))
    unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "short")
    if family.kind == "counter" and unit == "short":
        unit = "cps"
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": family.shown,
        "description": family.text,
        "datasource": SOURCE,
        "gridPos": {
            "x": number % COLUMNS * WIDTH,
            "y": number // COLUMNS * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for letter, (expr, legend) in zip("ABC", queries, strict=False)
        ],
    }


def _queries(component: str, family: Family) -> Iterator[tuple[str, str]]:
    """Return expressions and their legends."""
    labels = tuple(each for each in family.labels if "node" not in family.labels or each in PER_DEVICE)
    only = {"manager": '{job=~"$job"}', "agent": '{node=~"$node"}' if "node" in labels else ""}.get(
        component, ""
    )
    legend = " ".join(f"{{{{{each}}}}}" for each in labels)
    if family.kind == "histogram":
        by = ", ".join(("le", *labels))
        for quantile, name in (("0.5", "median"), ("0.99", "p99")):
            rate = f"rate({family.name}_bucket{only}[$__rate_interval])"
            yield f"histogram_quantile({quantile}, sum by ({by}) ({rate}))", f"{name} {legend}".strip()
        return
    value = f"{family.shown}{only}"
    if family.kind == "counter":
        value = f"rate({value}[$__rate_interval])"
    elif family.name.endswith("_timestamp_seconds"):
        value = f"{value} - time()"
    # Of several replicas only the leader shows gauges of state, or all show the same.
    function = "sum" if family.kind == "counter" or component == "manager" else "max"
    by = f" by ({', '.join(labels)})" if labels else ""
    yield f"{function}{by} ({value})", legend or family.shown
