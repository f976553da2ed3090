"""Those who wait for tasks to end. What ends through this process is told them at once, with the task's row;
of what ends through another the store tells, and they look for themselves."""

import asyncio
import contextlib
from collections.abc import Iterator

from gpu_orchestrator.adapters.store.tasks import Row

Ended = asyncio.Future[Row | None]


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[str, set[Ended]] = {}

    def __contains__(self, task: str) -> bool:
        return task in self._waiting

    def ended(self, task: str, row: Row | None = None) -> None:
        for each in self._waiting.get(task, ()):
            if not each.done():
                each.set_result(row)

    @contextlib.contextmanager
    def expect(self, task: str) -> Iterator[Ended]:
        """The end of a task, as long as somebody waits for it."""
        ended: Ended = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(task, set())
        waiting.add(ended)
        try:
            yield ended
        finally:
            waiting.discard(ended)
            if not waiting and self._waiting.get(task) is waiting:
                del self._waiting[task]
