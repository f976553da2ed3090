"""The store's contract for gangs: their members begin and end together, whatever becomes of one of them."""

import pytest

from gpu_orchestrator.adapters.store.records import (
    Accepted,
    Assigned,
    Assignment,
    Ended,
    Gone,
    KeyConflict,
    Limit,
    Moved,
    NewsItem,
    NewTask,
    NoRoom,
    NotAssigned,
    Note,
    Outcome,
    OutcomeKind,
    Queued,
    Renewal,
    Renewed,
    Unit,
)
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import FinishResult
from tests.support.store_calls import SPEC, join, lose, row, state, task, unfinished

pytestmark = pytest.mark.real

FAILED = '{"type":"ValueError","message":"no"}'


def gang(name: str, size: int, **rest: object) -> list[NewTask]:
    key = rest.pop("idempotency", "")
    return [
        task(f"{name}-{rank}", gang=size, idempotency=key if rank == 0 else "", **rest)
        for rank in range(size)
    ]


def places(name: str, size: int, on: dict[str, int], attempt: int = 0) -> list[Assignment]:
    """Return assignments of the members to these workers in turn."""
    workers = list(on.items())
    return [
        Assignment(f"{name}-{rank}", attempt, *workers[rank % len(workers)], "{}") for rank in range(size)
    ]


async def start(store: Store, name: str, size: int, on: dict[str, int], attempt: int = 0) -> None:
    """Assign a gang, and let all members begin."""
    given = await store.tasks.assign_gangs([planned := places(name, size, on, attempt)])
    assert given == [[Assigned('{"x": 1}', "")] * size]
    await store.tasks.note([Note(each.id, attempt + 1, each.worker, each.epoch, 0) for each in planned])


async def end(
    store: Store, name: str, worker: str, epoch: int, kind: OutcomeKind, **rest: object
) -> FinishResult:
    attempt = int(str(rest.pop("attempt", 1)))
    (told,) = await store.tasks.finish([Outcome(name, attempt, worker, epoch, kind, **rest)])  # type: ignore[arg-type]
    return told


async def states(store: Store, name: str, size: int) -> list[str]:
    return [await state(store, f"{name}-{rank}") for rank in range(size)]


async def told_to_stop(store: Store, worker: str, epoch: int) -> set[str]:
    (renewed,) = await store.workers.renew([Renewal(worker, epoch, "c")])
    assert isinstance(renewed, Renewed)
    return {each.id for each in renewed.active if each.cancel}


async def test_members_are_assigned_all_or_none(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 3))
    assert [each.id for each in news if isinstance(each, Queued)] == ["g-0", "g-1", "g-2"]
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    planned = places("g", 3, on)
    gone = [*planned[:2], Assignment("g-2", 0, "b", on["b"] + 7, "{}")]
    moved, other = NotAssigned(Moved.GANG), NotAssigned(Moved.WORKER)
    assert await store.tasks.assign_gangs([gone]) == [[moved, moved, other]]
    assert await store.tasks.assign_gangs([planned[:2]]) == [[moved, moved]], "one member is missing"
    await start(store, "g", 3, on)
    assert await states(store, "g", 3) == ["running"] * 3
    assert await store.tasks.assign_gangs([planned]) == [[NotAssigned(Moved.TASK)] * 3]


async def test_results_are_committed_when_all_members_are_done(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 3))
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    await start(store, "g", 3, on)
    first = await end(store, "g-2", "a", on["a"], "done", payload='"two"', wanted=True)
    assert (first.counted, first.state, first.row, first.others) == (1, "running", (), ())
    assert [each.id for each in news if isinstance(each, Ended)] == ["g-2"], "its devices are free"
    assert (await end(store, "g-2", "a", on["a"], "done", payload='"again"')).counted == 0
    assert "result" not in await row(store, "g-2")
    await end(store, "g-0", "a", on["a"], "done", payload='"zero"')
    last = await end(store, "g-1", "b", on["b"], "done", payload='"one"')
    assert (last.state, sorted(last.others)) == ("completed", ["g-0", "g-2"])
    assert [(await row(store, f"g-{rank}"))["result"] for rank in range(3)] == ['"zero"', '"one"', '"two"']
    assert await states(store, "g", 3) == ["completed"] * 3
    counts = await store.tasks.counts()
    assert (counts.states["running"], counts.stats["completed"], counts.stats["late"]) == (0, 3, 1)


async def test_member_that_fails_has_the_whole_gang_begin_again(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 3, retries=1))
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    await start(store, "g", 3, on)
    await end(store, "g-0", "a", on["a"], "done", payload='"first attempt"')
    news.clear()
    told = await end(store, "g-1", "b", on["b"], "failed", payload=FAILED, retryable=True, delay_ms=5000)
    assert told.state == "queued"
    assert await states(store, "g", 3) == ["queued", "queued", "running"]
    assert not any(isinstance(each, Queued) for each in news), "one of them still runs"
    assert await told_to_stop(store, "a", on["a"]) == {"g-2"}
    assert await store.tasks.assign_gangs([places("g", 3, on, 1)]) != [[Assigned('{"x": 1}', "")] * 3]
    assert (await end(store, "g-2", "a", on["a"], "done", payload='"too late"')).state == "queued"
    back = [each for each in news if isinstance(each, Queued)]
    assert [(each.id, each.attempt) for each in back] == [("g-0", 1), ("g-1", 1), ("g-2", 1)]
    assert len({each.after_ms for each in back}) == 1
    assert back[0].after_ms > back[0].created_ms
    assert "result" not in await row(store, "g-0")
    await start(store, "g", 3, on, 1)
    await end(store, "g-2", "a", on["a"], "failed", attempt=2, payload=FAILED, retryable=True)
    assert await states(store, "g", 3) == ["running", "running", "dead"], "retries count for all members"


async def test_member_that_fails_for_good_ends_the_gang(store: Store) -> None:
    await store.tasks.submit(gang("g", 3, retries=5))
    on = {"a": await join(store, "a")}
    await start(store, "g", 3, on)
    await end(store, "g-0", "a", on["a"], "done", payload='"unused"')
    told = await end(store, "g-1", "a", on["a"], "failed", payload=FAILED)
    assert (told.state, told.others) == ("failed", ("g-0",))
    assert await told_to_stop(store, "a", on["a"]) == {"g-2"}
    assert (await end(store, "g-2", "a", on["a"], "cancelled")).state == "failed"
    assert await states(store, "g", 3) == ["failed"] * 3
    assert (await row(store, "g-1"))["error"] == FAILED
    for other in ("g-0", "g-2"):
        shown = await row(store, other)
        assert '"GangFailed"' in shown["error"]
        assert shown["reason"] == "member g-1 of its gang has ended: failed; not retried (no)"
        assert "result" not in shown
    assert (await store.tasks.counts()).states["running"] == 0


async def test_lost_worker_is_blamed_once_and_two_end_the_gang(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 4, retries=9))
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    await start(store, "g", 4, on)
    await lose(store, "a", on["a"])
    assert await states(store, "g", 4) == ["queued", "running", "queued", "running"]
    for member in ("g-1", "g-3"):
        await end(store, member, "b", on["b"], "cancelled")
    back = [each for each in news if isinstance(each, Queued)][4:]
    assert [each.id for each in back] == ["g-0", "g-1", "g-2", "g-3"]
    assert [bool(each.deaths) for each in back].count(True) == 1
    assert {(await row(store, f"g-{rank}"))["tries"] for rank in range(4)} == {"1"}
    on = {"b": on["b"], "c": await join(store, "c")}
    await start(store, "g", 4, on, 1)
    await lose(store, "b", on["b"])
    await lose(store, "c", on["c"])
    assert await states(store, "g", 4) == ["dead"] * 4
    assert (await store.tasks.counts()).states["running"] == 0


async def test_two_workers_lost_at_once_cost_one_try(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 2, retries=1))
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    await start(store, "g", 2, on)
    await lose(store, "a", on["a"])
    await lose(store, "b", on["b"])
    assert await states(store, "g", 2) == ["queued"] * 2
    assert [each.attempt for each in news if isinstance(each, Queued)] == [0, 0, 1, 1]


async def test_worker_that_refuses_one_puts_the_gang_back(store: Store) -> None:
    await store.tasks.submit(gang("g", 2, retries=0))
    on = {"a": await join(store, "a"), "b": await join(store, "b")}
    for attempt in range(3):
        assert await store.tasks.assign_gangs([places("g", 2, on, attempt)]) == [
            [Assigned('{"x": 1}', "")] * 2
        ]
        await end(store, "g-1", "b", on["b"], "refused", attempt=attempt + 1, payload="2 of 4 GiB are free")
        assert await states(store, "g", 2) == ["assigned", "queued"]
        await end(store, "g-0", "a", on["a"], "cancelled", attempt=attempt + 1)
        assert await states(store, "g", 2) == ["queued"] * 2
    assert (await row(store, "g-0"))["tries"] == "0"


@pytest.mark.parametrize("named", [["g-1"], ["g-0", "g-1", "g-2"]], ids=["one", "all"])
async def test_cancel_of_one_cancels_all(store: Store, news: list[NewsItem], named: list[str]) -> None:
    await store.tasks.submit([*gang("g", 3), *gang("h", 3)])
    on = {"a": await join(store, "a")}
    cancelled = await store.tasks.cancel(named)
    assert [each.state for each in cancelled] == ["queued"] * len(named)
    assert sorted(cancelled[0].others) == ["g-0", "g-1", "g-2"]
    assert await states(store, "g", 3) == ["cancelled"] * 3
    assert sorted(each.id for each in news if isinstance(each, Gone)) == ["g-0", "g-1", "g-2"]
    await start(store, "h", 3, on)
    await end(store, "h-2", "a", on["a"], "done")
    (running,) = await store.tasks.cancel(["h-0"])
    assert (running.state, running.worker, running.others) == ("running", "a", ("h-2",))
    assert await told_to_stop(store, "a", on["a"]) == {"h-0", "h-1"}
    for member in ("h-0", "h-1"):
        assert (await end(store, member, "a", on["a"], "cancelled")).state == "cancelled"
    assert await states(store, "h", 3) == ["cancelled"] * 3


async def test_cancel_counts_while_a_gang_is_stopped_to_begin_again(store: Store) -> None:
    await store.tasks.submit(gang("g", 2))
    on = {"a": await join(store, "a")}
    await start(store, "g", 2, on)
    await end(store, "g-0", "a", on["a"], "failed", payload=FAILED, retryable=True)
    await store.tasks.cancel(["g-0"])
    assert await states(store, "g", 2) == ["cancelled", "running"]
    await end(store, "g-1", "a", on["a"], "cancelled")
    assert await states(store, "g", 2) == ["cancelled"] * 2


async def test_retry_of_one_retries_all_once_all_have_ended(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit(gang("g", 2))
    on = {"a": await join(store, "a")}
    await start(store, "g", 2, on)
    await end(store, "g-0", "a", on["a"], "failed", payload=FAILED)
    (early,) = await store.tasks.retry(["g-0"])
    assert getattr(early, "state", "") == "running", "the other one has not ended"
    await end(store, "g-1", "a", on["a"], "cancelled")
    full = await store.tasks.retry(["g-0"], may=Unit("", 1, 0, 0))
    assert full == [NoRoom(Limit.OWNER_QUEUE)]
    news.clear()
    both = await store.tasks.retry(["g-1", "g-0"])
    assert [getattr(each, "state", "") for each in both] == ["failed", "failed"]
    assert [type(each) for each in news] == [Queued, Queued]
    await start(store, "g", 2, on, 1)
    for member in ("g-0", "g-1"):
        await end(store, member, "a", on["a"], "done", attempt=2)
    assert await states(store, "g", 2) == ["completed"] * 2


async def test_gang_expires_whole(store: Store) -> None:
    await store.tasks.submit([*gang("g", 2, expires_ms=1)])
    due = await store.tasks.due()
    assert sorted(due.ended) == ["g-0", "g-1"]
    assert await states(store, "g", 2) == ["failed"] * 2
    assert '"Expired"' in (await row(store, "g-1"))["error"]


async def test_failed_dependency_of_one_member_cancels_all(store: Store) -> None:
    await store.tasks.submit([task("first")])
    on = {"a": await join(store, "a")}
    first, second = gang("g", 2)
    await store.tasks.submit([first, NewTask(second.id, SPEC, "{}", needs="cancel first", gang=2)])
    await store.tasks.see_to_links()
    assert await states(store, "g", 2) == ["queued", "scheduled"]
    assert await store.tasks.assign_gangs([places("g", 2, on)]) == [
        [NotAssigned(Moved.GANG), NotAssigned(Moved.TASK)]
    ]
    await store.tasks.cancel(["first"])
    ended = await store.tasks.see_to_links()
    assert sorted(ended.cancelled) == ["g-0", "g-1"]
    assert await states(store, "g", 2) == ["cancelled"] * 2


async def test_same_key_yields_the_same_gang(store: Store) -> None:
    taken = await store.tasks.submit(gang("g", 3, idempotency="k"))
    assert [isinstance(each, Accepted) and each.fresh for each in taken] == [1, 1, 1]
    again = await store.tasks.submit(gang("h", 3, idempotency="k"))
    assert [isinstance(each, Accepted) and (each.id, each.fresh) for each in again] == [
        ("g-0", 0),
        ("g-1", 0),
        ("g-2", 0),
    ]
    other = [
        NewTask(each.id, '{"task_type":"other"}', "{}", idempotency=each.idempotency, gang=2)
        for each in gang("i", 2, idempotency="k")
    ]
    assert await store.tasks.submit(other) == [KeyConflict("g-0"), KeyConflict("g-1")]
    await store.tasks.submit([task("plain", idempotency="p")])
    assert await store.tasks.submit(gang("j", 2, idempotency="p")) != []
    assert (await store.tasks.counts()).states["queued"] == 4


async def test_leader_of_a_version_without_gangs_gets_none(store: Store) -> None:
    await store.database._execute("HDEL", f"{store.database.prefix}leader", "gangs")
    refused = NoRoom(Limit.OLDER_LEADER)
    assert await store.tasks.submit(gang("g", 2), [Unit("o", 0, 0, 0, (0, 2, 0, 0))], [1, 1]) == [refused] * 2
    assert (await store.tasks.counts()).states.get("queued", 0) == 0
    await store.tasks.submit([task("plain")])
    await store.leadership.campaign()
    await store.tasks.submit(gang("g", 2))
    assert (await store.tasks.counts()).states["queued"] == 3


async def test_snapshot_leaves_out_members_that_are_done(store: Store) -> None:
    await store.tasks.submit(gang("g", 2))
    on = {"a": await join(store, "a")}
    await start(store, "g", 2, on)
    await end(store, "g-0", "a", on["a"], "done")
    assert [each.id for each in await unfinished(store)] == ["g-1"]
    assert (await store.workers.renew([Renewal("a", on["a"], "c")]))[0].active[0].id == "g-1"  # type: ignore[union-attr]
