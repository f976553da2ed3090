"""The leader's chore: it fires what is due, and no schedule, full store or lost lead holds up the others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.records import ANY_NUMBER, NewTask
from gpu_orchestrator.adapters.store.schedules import NewSchedule, ScheduleRow
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.schedules import template
from gpu_orchestrator.apps.manager.schedules.firing import AT_ONCE, ROUNDS, Chore
from tests.support.store_calls import SPEC

pytestmark = pytest.mark.real


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one") as opened:
        await opened.leadership.campaign()
        yield opened


def chore(store: Store, shortage: str = "") -> Chore:
    return Chore(store, Metrics(), lambda _: ANY_NUMBER, lambda: shortage)


async def save(store: Store, name: str, **rest: str) -> None:
    columns = {
        "name": name,
        "key": "bootstrap",
        "schedule": "@daily",
        "zone": "UTC",
        "missed": "run_once",
        "overlap": "allow",
        "jitter": "0",
        "params": "{}",
        "definition": "d",
        "task": template.written(NewTask("", SPEC, "{}", expires_ms=-60_000)),
        **rest,
    }
    flat = tuple(part for pair in columns.items() for part in pair)
    await store.schedules.save(NewSchedule(name, "ann", 0, 9999, 9999, 86_400_000, 0, flat))


async def get(store: Store, name: str) -> ScheduleRow:
    found = await store.schedules.get(name)
    assert found is not None
    return found


def outcomes(of: Chore) -> dict[str, float]:
    (family,) = of.metrics.schedule_moments.collect()
    return {
        each.labels["outcome"]: each.value
        for each in family.samples
        if each.name.endswith("_total") and each.value
    }


async def test_task_knows_its_schedule_and_moment(store: Store) -> None:
    await save(store, "nightly")
    firing = chore(store)
    assert not await firing.do()
    shown = await get(store, "nightly")
    (row,) = await store.tasks.fetch([shown.last_task])
    assert row is not None
    assert '"schedule":"nightly","scheduled_for":"20' in row["spec"]
    assert int(row["expires"]) - int(row["created"]) == 60_000
    assert row["correlation"] == f"nightly-{shown.last_ms}"
    assert outcomes(firing) == {"fired": 1, "missed": 100}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"zone": "Mars/Olympus"}, "the server knows no time zone 'Mars/Olympus'"),
        ({"schedule": "0 0 L * *"}, "'L' is no day of the month"),
        ({"task": '{"spec": 1}'}, "paused by the server"),
    ],
)
async def test_schedule_that_cannot_be_read_holds_up_no_other(
    store: Store, wrong: dict[str, str], said: str
) -> None:
    await save(store, "bad", **wrong)
    await save(store, "good")
    assert not await chore(store).do()
    assert (await get(store, "good")).fired == 1
    bad = await get(store, "bad")
    assert (bad.state, said in bad.reason) == ("paused", True), bad.reason


async def test_process_that_does_not_lead_stops_at_once(store: Store) -> None:
    await save(store, "nightly")
    store.fenced.drop_fence()
    assert not await chore(store).do()
    assert (await get(store, "nightly")).fired == 0


async def test_full_store_and_full_disk_leave_the_moment(store: Store) -> None:
    await save(store, "nightly")
    assert not await chore(store, "the disk is full").do()
    await store.database._execute("CONFIG", "SET", "maxmemory", "1")
    assert not await chore(store).do()
    assert (await get(store, "nightly")).fired == 0
    await store.database._execute("CONFIG", "SET", "maxmemory", "0")
    await chore(store).do()
    assert (await get(store, "nightly")).fired == 1


async def test_many_at_once_are_fired_in_parts(store: Store) -> None:
    for number in range(AT_ONCE + 10):
        await save(store, f"s{number}", missed="run_all")
    firing = chore(store)
    rounds = 0
    while await firing.do():
        rounds += 1
    assert rounds < ROUNDS
    assert outcomes(firing)["fired"] == 100 * (AT_ONCE + 10)
