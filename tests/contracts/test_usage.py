"""The store's contract for limits: a request is accepted whole or not at all, and usage is counted."""

from collections.abc import Sequence

import pytest

from gpu_orchestrator.adapters.store.records import (
    Accepted,
    Assignment,
    Limit,
    NewTask,
    NoRoom,
    Note,
    Outcome,
    Registration,
    Submitted,
    Unit,
)
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Retried
from gpu_orchestrator.adapters.store.usage import Spent
from tests.support.store_calls import unfinished

pytestmark = pytest.mark.real
OWNER_FULL, LEVEL_FULL = Limit.OWNER_QUEUE, Limit.LEVEL_QUEUE

DAY_MS = 86_400_000


def unit(owner: str = "ann", *, queued: int = 0, level: int = 0, gpu_ms: int = 0, tasks: int) -> Unit:
    return Unit(owner, queued, level, gpu_ms, (0, tasks, 0, 0))


def tasks_of(owner: str, names: Sequence[str], level: int = 1, idempotency: str = "") -> list[NewTask]:
    return [
        NewTask(name, '{"task_type":"echo"}', "{}", tenant=owner, level=level, idempotency=idempotency)
        for name in names
    ]


def verdicts(answers: Sequence[Submitted | Retried]) -> list[int | Limit]:
    """1 for a new or retried task, 0 for a known one, or the limit that left no room."""
    return [_verdict(each) for each in answers]


def _verdict(answer: Submitted | Retried) -> int | Limit:
    match answer:
        case NoRoom(limit=limit):
            return limit
        case Accepted(fresh=fresh):
            return fresh
        case Retried():
            return 1
        case _:
            raise AssertionError(answer)


async def submit(store: Store, may: Unit, *names: str, **rest: str) -> list[int | Limit]:
    new = tasks_of(may.owner, names, **rest)  # type: ignore[arg-type]
    return verdicts(await store.tasks.submit(new, [may], [1] * len(names)))


async def queued(store: Store) -> int:
    return (await store.tasks.counts()).states["queued"]


async def begin(store: Store, name: str, worker: str, epoch: int, milli: int = 1000) -> None:
    assert await store.tasks.assign([Assignment(name, 0, worker, epoch, "{}", milli)])


async def join(store: Store, name: str = "w") -> int:
    return (await store.workers.register(Registration(name, "i", "{}", store.owner, "c"))).epoch


async def test_request_is_accepted_whole_or_not_at_all(store: Store) -> None:
    assert await submit(store, unit(queued=3, tasks=2), "a", "b") == [1, 1]
    assert await submit(store, unit(queued=3, tasks=2), "c", "d") == [OWNER_FULL] * 2
    assert await queued(store) == 2
    assert await submit(store, unit(queued=3, tasks=1), "e") == [1]
    assert await submit(store, unit("bob", queued=3, tasks=3), "f", "g", "h") == [1, 1, 1], "another owner"


async def test_requests_in_one_call_count_for_each_other(store: Store) -> None:
    """Also if their tasks are mixed. The first that fits is accepted, and a smaller one after it may still
    fit."""
    new = tasks_of("ann", ["a1", "b1", "a2", "b2", "c1"])
    units = [unit(queued=3, tasks=2), unit(queued=3, tasks=2), unit(queued=3, tasks=1)]
    taken = await store.tasks.submit(new, units, [1, 2, 1, 2, 3])
    assert verdicts(taken) == [1, OWNER_FULL, 1, OWNER_FULL, 1]


async def test_first_part_of_a_request_decides_for_all_of_it(store: Store) -> None:
    assert await submit(store, unit(queued=3, tasks=4), "a", "b") == [OWNER_FULL] * 2
    assert await submit(store, unit(queued=4, tasks=4), "a", "b") == [1, 1]
    rest = unit(tasks=2)
    new = [*tasks_of("ann", ["x"]), *tasks_of("ann", ["c", "d"])]
    taken = await store.tasks.submit(new, [rest, unit(queued=4, tasks=1)], [2, 1, 1])
    assert verdicts(taken) == [OWNER_FULL, 1, 1], "an accepted request has its room"


async def test_priority_level_limit_covers_all_owners(store: Store) -> None:
    assert await submit(store, unit("ann", level=2, tasks=2), "a", "b") == [1, 1]
    assert await submit(store, unit("bob", level=2, tasks=1), "c") == [LEVEL_FULL]
    high = Unit("bob", 0, 2, 0, (0, 0, 1, 0))
    taken = await store.tasks.submit(tasks_of("bob", ["h"], level=2), [high], [1])
    assert verdicts(taken) == [1], "another level has its own limit"
    epoch = await join(store)
    await begin(store, "a", "w", epoch)
    assert await submit(store, unit("bob", level=2, tasks=1), "d") == [1], (
        "a started task does not wait any more"
    )
    await store.tasks.finish([Outcome("a", 1, "w", epoch, "refused")])
    assert await submit(store, unit("bob", level=2, tasks=1), "e") == [LEVEL_FULL], "it waits again"
    await store.tasks.cancel(["a"])
    await store.tasks.cancel(["d"])
    assert await submit(store, unit("bob", level=2, tasks=1), "f") == [1]


async def test_new_leader_recounts_priority_levels(store: Store) -> None:
    """Rows of an earlier version have no level; it comes from their spec."""
    await submit(store, unit(tasks=2), "a", "b")
    prefix = store.database.prefix
    await store.database._execute("HDEL", f"{prefix}t:a", "level")
    await store.database._execute("HSET", f"{prefix}levels", "1", "77")
    await unfinished(store)
    assert await submit(store, unit(level=2, tasks=1), "c") == [LEVEL_FULL]
    assert await submit(store, unit(level=3, tasks=1), "c") == [1]
    await store.tasks.cancel(["a"])
    assert await submit(store, unit(level=3, tasks=1), "d") == [1], "its row has a level now"


async def test_retry_respects_limits(store: Store) -> None:
    names = ["a", "b", "c"]
    await submit(store, unit(tasks=3), *names)
    await store.tasks.cancel(names)
    retried = await store.tasks.retry(names, may=unit(queued=2, tasks=1))
    assert retried == [Retried("cancelled"), Retried("cancelled"), NoRoom(OWNER_FULL)]
    assert await queued(store) == 2
    assert verdicts(await store.tasks.retry(["c"], may=unit(level=2, tasks=1))) == [LEVEL_FULL]
    assert verdicts(await store.tasks.retry(["c"], may=unit(level=3, tasks=1))) == [1]
    assert await submit(store, unit(level=3, tasks=1), "d") == [LEVEL_FULL], "retried tasks count"


async def test_known_idempotency_key_needs_no_room(store: Store) -> None:
    assert await submit(store, unit(queued=1, tasks=1), "a", idempotency="k") == [1]
    assert await submit(store, unit(queued=1, tasks=1), "b", idempotency="k") == [0]
    assert await submit(store, unit(queued=1, tasks=1), "c", idempotency="other") == [OWNER_FULL]


async def test_gpu_time_of_the_day_is_charged_when_attempts_end(store: Store) -> None:
    epoch = await join(store)
    await submit(store, unit(tasks=3), "whole", "half", "none")
    for name, milli in (("whole", 2000), ("half", 500), ("none", 0)):
        await begin(store, name, "w", epoch, milli)
        await _age(store, name, 10_000)
    await store.tasks.finish(
        [Outcome("whole", 1, "w", epoch, "done"), Outcome("none", 1, "w", epoch, "done")]
    )
    assert (await store.usage.of()).used_s()["ann"] == pytest.approx(20.0, abs=2.0)
    await store.tasks.finish([Outcome("half", 1, "w", epoch, "failed", "{}", True)])
    usage = await store.usage.of("ann")
    assert usage.used_s()["ann"] == pytest.approx(25.0, abs=3.0), "a failed attempt is charged too"
    assert (usage.queued, usage.active) == (1, 0)
    assert 0 < usage.day_left_ms <= DAY_MS
    (refused,) = await store.tasks.submit(tasks_of("ann", ["x"]), [unit(gpu_ms=24_000, tasks=1)], [1])
    assert isinstance(refused, NoRoom)
    assert refused.limit is Limit.DAY_BUDGET
    assert 0 < refused.retry_after_ms <= DAY_MS, "how long to wait"
    assert await submit(store, unit(gpu_ms=60_000, tasks=1), "y") == [1]
    assert await submit(store, unit("bob", gpu_ms=1, tasks=1), "z") == [1]


async def _age(store: Store, name: str, ms: int) -> None:
    """Move the assignment this far into the past."""
    key = f"{store.database.prefix}t:{name}"
    assigned = int(await store.database._execute("HGET", key, "assigned"))
    await store.database._execute("HSET", key, "assigned", str(assigned - ms))


async def test_usage_counts_queued_and_active_tasks_of_an_owner(store: Store) -> None:
    epoch = await join(store)
    await submit(store, unit(tasks=3), "a", "b", "c")
    await submit(store, unit("bob", tasks=1), "d")
    await begin(store, "a", "w", epoch)
    await begin(store, "b", "w", epoch)
    await store.tasks.note([Note("b", 1, "w", epoch, 0)])
    usage = await store.usage.of("ann")
    assert (usage.queued, usage.active, usage.used_s()) == (1, 2, {})


async def test_processes_share_counts_of_admitted_requests(store: Store) -> None:
    now_ms = (await store.tasks.counts()).now_ms
    slot = now_ms // 1000
    assert await store.usage.exchange_rates([Spent("k::60", 1000, 60, (slot, 3))]) == [{slot: 3}]
    both = [Spent("k::60", 1000, 60, (slot, 2, slot - 1, 1)), Spent("other::60", 1000, 60, ())]
    assert await store.usage.exchange_rates(both) == [{slot: 5, slot - 1: 1}, {}]
    old = [Spent("k::60", 1000, 60, (slot - 100, 9))]
    assert await store.usage.exchange_rates(old) == [{slot: 5, slot - 1: 1}], "old slots do not count"
