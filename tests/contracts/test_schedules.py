"""The store's contract for schedules: each moment is fired once, also when leaders change and
answers are lost."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_orchestrator.adapters.store.keys import KeyRow
from gpu_orchestrator.adapters.store.records import ANY_NUMBER, NewsItem, NewTask, Queued, Unit
from gpu_orchestrator.adapters.store.schedules import Fired, Firing, NewSchedule, ScheduleRow
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import backup
from tests.support.scale import Scale
from tests.support.store_calls import SPEC, NewStore, row, state

pytestmark = pytest.mark.real
STEP_MS = 1000
LONG_MS = 3_600_000


async def save(store: Store, name: str = "s", **rest: Any) -> tuple[str, ScheduleRow | None]:
    given = {"next_ms": 1, "delay_ms": 0, "owner": "o", "replaces": 0, "most": 9, "all": 9, **rest}
    columns = {
        "name": name,
        "key": given.pop("key", "bootstrap"),
        "schedule": "@every 1s",
        "zone": "UTC",
        "missed": "run_all",
        "overlap": given.pop("overlap", "allow"),
        "jitter": "0",
        "task": "{}",
        "params": given.pop("params", "{}"),
        "definition": given.pop("definition", "d"),
    }
    flat = tuple(part for pair in columns.items() for part in pair)
    return await store.schedules.save(
        NewSchedule(
            name,
            given["owner"],
            given["replaces"],
            given["most"],
            given["all"],
            given["next_ms"],
            given["delay_ms"],
            flat,
        )
    )


async def get(store: Store, name: str = "s") -> ScheduleRow:
    found = await store.schedules.get(name)
    assert found is not None
    return found


def firing(name: str, at: int, *more: int, following: int = 0, unit: Unit = ANY_NUMBER) -> Firing:
    run = (at, *more)
    tasks = tuple(NewTask(f"{name}.{moment}", SPEC, "{}", tenant="o") for moment in run)
    following = following or run[-1] + STEP_MS
    return Firing(name, at, following, run[-1], tasks, tuple(map(str, run)), unit, 0)


async def fire(store: Store, given: Firing) -> Fired:
    (told,) = await store.schedules.fire([given])
    return told


async def events(store: Store) -> list[str]:
    return [each.name for each in (await store.events.page(None)).entries]


async def queued(store: Store) -> int:
    return (await store.tasks.counts()).states["queued"]


async def test_moment_is_fired_once(store: Store, new_store: NewStore, news: list[NewsItem]) -> None:
    await save(store)
    due = await store.schedules.due(10)
    assert [each.next_ms for each in due.rows] == [1]
    assert await new_store("not leading").schedules.fire([firing("s", 1)]) == ()
    assert await fire(store, firing("s", 1)) == Fired("fired", 1, 0)
    assert await fire(store, firing("s", 1)) == Fired("moved on", 0, 0), (
        "the answer was lost, and it is repeated"
    )
    shown = await get(store)
    assert (shown.next_ms, shown.last_ms, shown.last_task, shown.fired) == (1001, 1, "s.1", 1)
    assert [each.id for each in news if isinstance(each, Queued)] == ["s.1"]
    assert await events(store) == ["schedule_fired"]


async def test_old_leader_fires_nothing(store: Store, new_store: NewStore) -> None:
    await save(store)
    await store.leadership.resign()
    store.fenced.fence = 7
    await new_store("two").leadership.campaign()
    assert await store.schedules.fire([firing("s", 1)]) == ()
    assert await queued(store) == 0


async def test_future_schedule_is_not_due(store: Store) -> None:
    now_ms = (await store.schedules.due(1)).now_ms
    await save(store, "later", next_ms=now_ms + LONG_MS)
    await save(store, "delayed", next_ms=now_ms, delay_ms=LONG_MS)
    await save(store, "now", next_ms=now_ms)
    assert [each.name for each in (await store.schedules.due(10)).rows] == ["now"]
    assert (await store.tasks.due()).schedules == 1


async def test_paused_and_deleted_schedules_do_not_fire(store: Store) -> None:
    await save(store)
    assert (await store.schedules.change("s", "pause", owner="other", by="x"))[1] is None
    assert (await store.schedules.change("s", "pause", owner="o", by="x"))[0] == "active"
    assert (await store.schedules.due(10)).rows == ()
    assert (await fire(store, firing("s", 1))).outcome == "moved on"
    assert (await get(store)).reason == "paused by x"
    await save(store, definition="other", replaces=1)
    assert (await get(store)).state == "paused", "who deploys does not resume"
    await store.schedules.change("s", "resume", owner="o", next_ms=5)
    assert (await get(store)).next_ms == 5
    await store.schedules.change("s", "delete", owner="o")
    assert (await store.schedules.due(10)).rows == ()
    assert (await store.schedules.page("", 0, 10)).total == 0
    assert (await fire(store, firing("s", 5))).outcome == "moved on"
    left = [name async for found in store.database.scan(100) for name in found if "sc" in name]
    assert left == []


async def test_same_again_changes_nothing_and_another_needs_replace(store: Store) -> None:
    assert (await save(store))[0] == "saved"
    assert (await save(store, next_ms=99))[0] == "known"
    assert (await get(store)).next_ms == 1
    assert (await save(store, definition="other"))[0] == "other"
    await fire(store, firing("s", 1))
    assert (await save(store, definition="other", replaces=1, params="[]", next_ms=99))[0] == "known"
    shown = await get(store)
    assert (shown.params, shown.next_ms, shown.fired) == ("[]", 1001, 1), "the same time: its moment stays"
    assert (await save(store, "t", most=1))[0] == "full"
    assert (await save(store, "t", owner="p", all=1))[0] == "all full"


@pytest.mark.parametrize("over", ["revoked", "expired", "unknown"])
async def test_schedule_stops_with_its_key(store: Store, over: str) -> None:
    now_ms = (await store.schedules.due(1)).now_ms
    expires_ms = now_ms - 1 if over == "expired" else 0
    if over != "unknown":
        await store.keys.save(KeyRow("k1", "d", "n", "o", "submit", expires_ms=expires_ms))
    if over == "revoked":
        await store.keys.revoke("k1")
    await save(store, key="k1")
    assert (await fire(store, firing("s", 1))).outcome == "stopped"
    shown = await get(store)
    assert (shown.state, shown.next_ms, shown.fired) == ("stopped", 0, 0)
    assert "the key k1, with which it was added, " in shown.reason
    assert (await store.schedules.due(10)).rows == ()
    assert await events(store) == ["schedule_stopped"]
    await store.schedules.change("s", "resume", owner="o", next_ms=5)
    assert (await get(store)) == shown
    await store.keys.save(KeyRow("k2", "e", "n", "o", "submit"))
    await store.schedules.change("s", "resume", owner="o", next_ms=5, new_key="k2")
    assert (await fire(store, firing("s", 5))).outcome == "fired"
    assert (await save(store, "again", key="k3"))[0] == "saved"
    await fire(store, firing("again", 1))
    await save(store, "again", key="k2", next_ms=5)
    assert (await fire(store, firing("again", 5))).outcome == "fired", "added again, it goes on"


async def test_without_room_the_moment_stays(store: Store) -> None:
    await save(store)
    await save(store, "t")
    no_room = Unit("o", 1, 0, 0)
    assert await fire(store, firing("s", 1, unit=no_room)) == Fired("fired", 1, 0)
    assert await fire(store, firing("t", 1, unit=no_room)) == Fired("no room", 0, -2)
    shown = await get(store, "t")
    assert (shown.next_ms, shown.trouble) == (1, "its owner has too many tasks waiting")
    assert [each.name for each in (await store.schedules.due(10)).rows] == ["s"], "it is tried again later"
    assert await fire(store, firing("t", 1)) == Fired("fired", 1, 0)
    assert (await get(store, "t")).trouble == ""


async def test_overlap_allows_skips_or_queues(store: Store) -> None:
    for name in ("allow", "skip", "queue"):
        await save(store, name, overlap=name)
        assert (await fire(store, firing(name, 1))).outcome == "fired"
    assert await fire(store, firing("allow", 1001, 2001)) == Fired("fired", 2, 0)
    assert await fire(store, firing("skip", 1001, 2001)) == Fired("overlap", 0, 0)
    assert await fire(store, firing("queue", 1001, 2001)) == Fired("fired", 2, 0)
    assert (await get(store, "skip")).passed_over == 2
    assert [await state(store, f"queue.{at}") for at in (1001, 2001)] == ["scheduled"] * 2
    assert [(await row(store, f"queue.{at}"))["needs"] for at in (1001, 2001)] == [
        "run queue.1",
        "run queue.1001",
    ]
    await store.tasks.cancel(["skip.1"])
    shown = await get(store, "skip")
    assert (await fire(store, firing("skip", shown.next_ms))).outcome == "fired"


async def test_backup_keeps_schedules(store: Store, empty_store: Store, tmp_path: Path) -> None:
    await save(store, "due")
    await save(store, "paused")
    await store.schedules.change("paused", "pause", owner="", by="x")
    await backup.save(store.database, tmp_path / "file", {})
    await backup.load(empty_store.database, tmp_path / "file")
    await empty_store.leadership.campaign()
    assert [each.name for each in (await empty_store.schedules.due(10)).rows] == ["due"]
    assert (await empty_store.schedules.page("o", 0, 10)).total == 2
    assert (await fire(empty_store, firing("due", 1))).outcome == "fired"


async def test_leaders_that_come_and_go_fire_each_moment_once(
    store: Store, new_store: NewStore, scale: Scale
) -> None:
    """Leaders read what is due, and are gone before their write, lose its answer, or write late."""
    chance, size = Random(21), scale(test=60, accept=1000)
    await save(store)
    leaders, late = [store], list[tuple[Store, Firing]]()
    while (await get(store)).next_ms < size * STEP_MS:
        leader = leaders[-1]
        rows = (await leader.schedules.due(1)).rows
        wanted = firing("s", rows[0].next_ms)
        match chance.choice(["die before", "write", "lose the answer", "write late"]):
            case "write":
                await leader.schedules.fire([wanted])
            case "lose the answer":
                await asyncio.gather(leader.schedules.fire([wanted]), leader.schedules.fire([wanted]))
            case "write late":
                late.append((leader, wanted))
        if chance.random() < 0.3:
            await leader.leadership.resign()
            leaders.append(new_store(f"leader {len(leaders)}"))
            await leaders[-1].leadership.campaign()
        if late and chance.random() < 0.5:
            old, given = late.pop(0)
            await old.schedules.fire([given])
    count = len(range(1, size * STEP_MS, STEP_MS))
    assert (await queued(store), (await get(store)).fired) == (count, count)
