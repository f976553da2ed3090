"""Admission: a request is accepted whole or not at all, also if it goes in parts."""

import asyncio
from collections.abc import Sequence

from gpu_orchestrator.adapters.store.records import Accepted, Limit, NewTask, NoRoom, Submitted, Unit
from gpu_orchestrator.apps.manager.tasks.admission import Admission

FULL = NoRoom(Limit.OWNER_QUEUE)


class Counter:
    """A store with room for `room` tasks. It answers at once, unless a test clears `may_answer`."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.calls: list[tuple[list[str], list[Unit]]] = []

    async def __call__(
        self, tasks: Sequence[NewTask], units: Sequence[Unit], unit_of: Sequence[int]
    ) -> list[Submitted]:
        self.calls.append(([task.id for task in tasks], list(units)))
        full = [unit.most_queued > 0 and sum(unit.tasks) > self.room for unit in units]
        self.is_asked.set()
        await asyncio.sleep(0)
        await self.may_answer.wait()
        return [
            FULL if full[number - 1] else Accepted(task.id, 1, 1)
            for task, number in zip(tasks, unit_of, strict=True)
        ]


def tasks(owner: str, count: int, level: int = 1) -> list[NewTask]:
    return [NewTask(f"{owner}{number}", "{}", "{}", tenant=owner, level=level) for number in range(count)]


async def test_large_request_goes_in_parts_and_is_judged_once() -> None:
    store = Counter(room=2000)
    taken = await Admission(store).put(tasks("ann", 1200), Unit("ann", 5000, 9, 7))
    assert taken == [Accepted(f"ann{number}", 1, 1) for number in range(1200)]
    (first, (one,)), (second, (two,)), (third, (three,)) = store.calls
    assert [len(first), len(second), len(third)] == [500, 500, 200]
    assert one == Unit("ann", 5000, 9, 7, (0, 1200, 0, 0))
    assert two == Unit("ann", 0, 0, 0, (0, 700, 0, 0)), "the rest needs room, but no second verdict"
    assert three == Unit("ann", 0, 0, 0, (0, 200, 0, 0))


async def test_refused_request_skips_its_other_parts() -> None:
    store = Counter(room=1000)
    taken = await Admission(store).put(tasks("ann", 1200), Unit("ann", 1000, 0, 0))
    assert taken == [FULL] * 1200
    assert len(store.calls) == 1


async def test_single_task_does_not_wait_for_thousands_of_another_owner() -> None:
    store = Counter(room=10_000)
    admission = Admission(store)
    store.may_answer.clear()
    many = asyncio.ensure_future(admission.put(tasks("ann", 3000), Unit("ann", 0, 0, 0)))
    await asyncio.wait_for(store.is_asked.wait(), 60.0)
    one = asyncio.ensure_future(admission.put(tasks("bob", 1, level=3), Unit("bob", 0, 0, 0)))
    await asyncio.sleep(0)  # bob's request arrives while the store still works on ann's first part
    store.may_answer.set()
    assert await asyncio.wait_for(one, 60.0) == [Accepted("bob0", 1, 1)]
    assert not many.done()
    assert "bob0" in store.calls[1][0]
    assert len(await many) == 3000


async def test_refusal_is_repeated_for_a_moment_without_calling_the_store() -> None:
    store, clock = Counter(room=0), [100.0]
    admission, may = Admission(store, lambda: clock[0]), Unit("ann", 5, 0, 0)
    for count, calls in ((3, 1), (3, 1), (4, 1), (2, 2), (2, 2)):
        assert await admission.put(tasks("ann", count), may) == [FULL] * count
        assert len(store.calls) == calls, "only a smaller request goes to the store"
    known = [NewTask("x", "{}", "{}", tenant="ann", idempotency="once")]
    await admission.put(known * 2, may)
    assert len(store.calls) == 3, "its idempotency key may be known, so it may need no room"
    await admission.put(tasks("bob", 3), Unit("bob", 5, 0, 0))
    await admission.put(tasks("ann", 3), Unit("ann", 0, 0, 0))
    assert len(store.calls) == 5, "another owner, and a key without a limit"
    clock[0] += 1.0
    store.room = 9
    taken = await admission.put(tasks("ann", 3), may)
    assert taken == [Accepted(f"ann{number}", 1, 1) for number in range(3)]
