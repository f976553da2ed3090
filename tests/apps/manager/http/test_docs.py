"""Tests that the documentation matches the manager: every metric, alert, route and event."""

import re
from typing import get_args

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.fleet import alerts
from gpu_orchestrator.cli import api_docs
from tests.apps.manager.conftest import Site
from tests.support import scrapes, scripted_worker
from tests.support.paths import ROOT

OPERATIONS = (ROOT / "docs/operations.md").read_text()
SCRIPTS = ROOT / "src/gpu_orchestrator/adapters/store/valkey/scripts"


def column(text: str, heading: str) -> set[str]:
    """Return the names in the first column of all tables with this heading."""
    found: set[str] = set()
    for table in re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            found |= set(re.findall(r"`([a-z_]+)(?:{[a-z,]*})?`", row.split("|")[1]))
    return found


def test_api_reference_is_up_to_date() -> None:
    """If this fails, run `make api-docs`."""
    assert (ROOT / "docs/reference/api.md").read_text() == api_docs.markdown()


def test_every_alert_is_documented() -> None:
    assert column(OPERATIONS, "kind") == set(get_args(alerts.Kind))


def test_every_event_is_documented() -> None:
    """Compare with the names that the Lua scripts emit, and those that need no script."""
    lua = "".join(path.read_text() for path in SCRIPTS.glob("*.lua"))
    counters = {"callback_tries", "tasks_expired"}
    emitted = (
        set(re.findall(r"'((?:tasks?|worker|gpu|callback|schedule|model|scale)_[a-z_]+)'", lua)) - counters
    )
    python = (path.read_text() for path in (ROOT / "src/gpu_orchestrator/apps/manager").rglob("*.py"))
    emitted |= set(re.findall(r'events\.emit\(\s*"([a-z_]+)"', "".join(python)))
    assert emitted | {"reset"} == column(api_docs.markdown(), "event")


@pytest.mark.real
async def test_documented_metrics_are_the_exported_ones(site: Site) -> None:
    worker = await site.join()
    await worker.send(session.Report((scripted_worker.reading(0, ecc_errors=1), scripted_worker.reading(1))))
    await site.submit()
    await worker.finish(await worker.take())
    async with site.http.get("/metrics") as answer:
        text = await answer.text()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    scrapes.check("manager", text)
    there = {name for name in kinds if not name.endswith("_created")}
    assert there == column(OPERATIONS, "metric")
