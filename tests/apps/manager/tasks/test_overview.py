"""The cached view of the cluster is refreshed when necessary, and not more often."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from gpu_orchestrator.adapters.store.tasks import Counts
from gpu_orchestrator.adapters.store.valkey.database import Room
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy
from gpu_orchestrator.apps.manager.tasks.overview import Overview


class Empty:
    """A store without workers; `looks` counts the refreshes."""

    def __init__(self) -> None:
        self.looks = 0
        self.tasks = SimpleNamespace(counts=self.counts)
        self.database = SimpleNamespace(room=self.room)
        self.logs = SimpleNamespace(size=self.size)
        self.workers = SimpleNamespace(stamps=self.stamps, rows=self.rows)
        self.meanwhile: Callable[[], None] = lambda: None

    async def counts(self) -> Counts:
        self.looks += 1
        self.meanwhile()
        return Counts(0, {}, {}, (), "")

    async def room(self, most: int) -> Room:
        return Room(0, most)

    async def size(self) -> int:
        return 0

    async def stamps(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {}

    async def rows(self, names: tuple[str, ...]) -> AsyncIterator[Any]:
        for _ in names:
            yield []


async def test_fresh_view_is_not_read_again() -> None:
    store = Empty()
    overview = Overview(store, MemoryPolicy())  # type: ignore[arg-type]
    for _ in range(3):
        await overview.refresh(at_most_old_s=10.0)
    assert store.looks == 1


async def test_worker_that_joins_during_a_refresh_causes_another() -> None:
    store = Empty()
    overview = Overview(store, MemoryPolicy())  # type: ignore[arg-type]
    store.meanwhile = overview.expire
    await overview.refresh(at_most_old_s=10.0)
    store.meanwhile = lambda: None
    for _ in range(2):
        await overview.refresh(at_most_old_s=10.0)
    assert store.looks == 2
