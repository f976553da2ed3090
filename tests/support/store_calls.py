"""Short calls of the store for its contract tests: join a worker, assign, run, finish and read tasks."""

from collections.abc import Callable

from gpu_orchestrator.adapters.store.records import (
    Assigned,
    Assignment,
    AssignResult,
    Departure,
    NewTask,
    Note,
    Outcome,
    OutcomeKind,
    Registration,
    UnfinishedTask,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts

SPEC = '{"task_type":"echo"}'
SHORT = StoreTimeouts(lease_ms=60, grace_ms=30, leader_ms=60_000, most_workers=3)

NewStore = Callable[..., Store]


def task(name: str, **rest: object) -> NewTask:
    return NewTask(name, SPEC, '{"x": 1}', **rest)  # type: ignore[arg-type]


async def join(store: Store, name: str, *, instance: str = "i", connection: str = "c") -> int:
    greeting = await store.workers.register(Registration(name, instance, "{}", store.owner, connection))
    assert greeting.kind == "new"
    return greeting.epoch


async def give(store: Store, name: str, worker: str, epoch: int, attempt: int = 0) -> AssignResult:
    given = await store.tasks.assign([Assignment(name, attempt, worker, epoch, "{}")])
    assert given is not None
    return given[0]


async def run(store: Store, name: str, worker: str, epoch: int, attempt: int = 0) -> None:
    assert await give(store, name, worker, epoch, attempt) == Assigned('{"x": 1}', "")
    await store.tasks.note([Note(name, attempt + 1, worker, epoch, 0)])


async def tell(store: Store, name: str, worker: str, epoch: int, kind: OutcomeKind, **rest: object) -> int:
    outcome = Outcome(name, int(str(rest.pop("attempt", 1))), worker, epoch, kind, **rest)  # type: ignore[arg-type]
    return (await store.tasks.finish([outcome]))[0].counted


async def row(store: Store, name: str) -> dict[str, str]:
    (found,) = await store.tasks.fetch([name])
    assert found is not None
    return found


async def state(store: Store, name: str) -> str:
    return (await row(store, name))["state"]


async def lose(store: Store, worker: str, epoch: int) -> None:
    assert await store.workers.leave([Departure(worker, epoch, f"{worker} is lost")]) == (True,)


async def unfinished(store: Store, size: int = 2) -> list[UnfinishedTask]:
    """Begin a term and return all tasks of its snapshot, read in pages of this size."""
    snapshot = await store.snapshots.begin(1000)
    assert snapshot is not None
    return [each async for page in store.snapshots.pages(snapshot, size) for each in page]
