"""The store's contract for circuits of workers: when one opens, half opens and closes."""

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from gpu_orchestrator.adapters.store.events import START
from gpu_orchestrator.adapters.store.records import Breaker, NewTask
from gpu_orchestrator.adapters.store.store import Store
from tests.support.patience import PATIENCE_S
from tests.support.store_calls import SHORT, SPEC, NewStore, join, run, tell

pytestmark = pytest.mark.real
BREAKER = Breaker(window_ms=60_000, fewest=4, percent=60, pause_ms=1, longest_ms=2)
RUNTIME = '{"type":"RuntimeError","message":"CUDA error","retryable":false}'
BAD = '{"type":"BadParameters","message":"no","retryable":false}'
"""How workers write errors."""


class Fleet:
    """Workers `a` and `b`, on which tasks end as a test says."""

    def __init__(self, store: Store) -> None:
        self.store, self.epochs = store, dict[str, int]()
        self._names = (f"t{number}" for number in count())

    async def end(
        self, worker: str, *kinds: str, owner: str = "ann", spec: str = SPEC, error: str = RUNTIME
    ) -> None:
        for kind in kinds:
            name = next(self._names)
            await self.store.tasks.submit([NewTask(name, spec, '{"x": 1}', tenant=owner)])
            await run(self.store, name, worker, self.epochs[worker])
            more: dict[str, Any] = {"payload": error} if kind == "failed" else {}
            assert await tell(self.store, name, worker, self.epochs[worker], kind, **more)  # type: ignore[arg-type]

    async def circuit(self, worker: str) -> str:
        (row,) = await self.store.workers.fetch([worker])
        assert row is not None
        return row.get("circuit", "")

    async def until_half_open(self, *names: str) -> None:
        """Wait for the store's clock."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.circuit(names[0]) != "half":
                await self.store.workers.half_open(names)

    async def events(self) -> list[str]:
        """Return the states that events about workers told."""
        page = await self.store.events.page(START, 1000)
        return [json.loads(each.data).get("status", "") for each in page.entries]


async def fleet_of(new_store: NewStore, workers: str = "ab", **more: int) -> Fleet:
    breaker = structs.replace(BREAKER, **more)
    found = Fleet(new_store(timeouts=replace(SHORT, lease_ms=60_000, most_workers=9, breaker=breaker)))
    await found.store.leadership.campaign()
    for name in workers:
        found.epochs[name] = await join(found.store, name)
    return found


async def test_circuit_opens_where_most_tasks_fail_and_closes_after_a_success(new_store: NewStore) -> None:
    fleet = await fleet_of(new_store)
    await fleet.end("b", "done", "done")
    await fleet.end("a", "done", "failed", "died", "done")
    assert await fleet.circuit("a") == "", "too few since the first failure"
    await fleet.end("a", "failed")
    assert await fleet.circuit("a") == "open"
    (row,) = await fleet.store.workers.fetch(["a"])
    assert row is not None
    assert (row["circuit_times"], row["circuit_why"]) == ("1", "3 of 4 tasks failed")
    await fleet.end("a", "done")  # it was running
    assert await fleet.circuit("a") == "open"
    await fleet.until_half_open("a", "b")
    assert (await fleet.circuit("a"), await fleet.circuit("b")) == ("half", "")
    await fleet.end("a", "failed")
    assert await fleet.circuit("a") == "open"
    await fleet.until_half_open("a")
    await fleet.end("a", "done")
    assert await fleet.circuit("a") == ""
    events = [each for each in await fleet.events() if each.startswith("circuit") or each == "online"]
    steps = ["circuit_open", "circuit_half_open", "circuit_open", "circuit_half_open", "online"]
    assert events[-5:] == steps


async def test_circuit_that_opened_waits_for_its_time(new_store: NewStore) -> None:
    fleet = await fleet_of(new_store, pause_ms=60_000, longest_ms=60_000)
    await fleet.end("a", *["failed"] * 4)
    await fleet.store.workers.half_open(["a"])
    assert await fleet.circuit("a") == "open"
    await fleet.store.workers.control("a", {"circuit": ""})
    assert await fleet.circuit("a") == ""
    await fleet.end("a", *["failed"] * 4)
    assert await fleet.circuit("a") == "open", "it counts anew"


@pytest.mark.parametrize(
    ("workers", "before", "failing"),
    [
        pytest.param("a", (), {}, id="a single worker"),
        pytest.param("ab", ("failed",) * 4, {}, id="no worse than the others"),
        pytest.param("ab", (), {"error": BAD}, id="what is wrong with the task"),
        pytest.param(
            "ab", (), {"spec": '{"task_type":"echo","worker":"a"}'}, id="tasks of this worker alone"
        ),
        pytest.param("ab", ("done",), {"owner": "bob"}, id="one of several owners"),
    ],
)
async def test_circuit_stays_closed(
    new_store: NewStore, workers: str, before: tuple[str, ...], failing: dict[str, str]
) -> None:
    fleet = await fleet_of(new_store, workers)
    if before:
        await fleet.end("b", *before)
    await fleet.end("a", *["failed"] * 8, **failing)
    assert await fleet.circuit("a") == ""


async def test_circuit_opens_for_failures_of_two_owners_and_one_half_of_the_workers(
    new_store: NewStore,
) -> None:
    fleet = await fleet_of(new_store, "abcd", pause_ms=60_000)
    for worker in "abc":
        for owner in ("ann", "bob"):
            await fleet.end("d", "done", "done", "done", "done", "done", "done", owner=owner)
            await fleet.end(worker, "failed", "failed", owner=owner)
    assert [await fleet.circuit(each) for each in "abcd"] == ["open", "open", "", ""]


async def test_no_breaker_no_circuit(new_store: NewStore) -> None:
    fleet = await fleet_of(new_store, fewest=0)
    await fleet.end("a", *["failed"] * 9)
    assert await fleet.circuit("a") == ""
