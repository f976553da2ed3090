"""Those who wait for tasks to end. What ends through this process is told them at once, with the task's row;
of what ends through another the store tells, and they look for themselves."""

import asyncio

from gpu_orchestrator.adapters.store.tasks import Row

Ended = asyncio.Future[Row | None]


class CompletionWaiters:
    def __init__(self) -> None:
        self._waiting: dict[str, set[Ended]] = {}

    def __contains__(self, task: str) -> bool:
        return task in self._waiting

    def ended(self, task: str, row: Row | None = None) -> None:
        """With its row, or they look for themselves."""
        for each in self._waiting.get(task, ()):
            if not each.done():
                each.set_result(row)

    def join(self, task: str) -> Ended:
        """The end of a task, for who then leaves in any case."""
        ended: Ended = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task, set()).add(ended)
        return ended

    def leave(self, task: str, ended: Ended) -> None:
        waiting = self._waiting[task]
        waiting.discard(ended)
        if not waiting:
            del self._waiting[task]


async def within(ended: Ended, seconds: float) -> Row | None:
    """The row, or None if nobody has told it by then."""
    timer = asyncio.get_running_loop().call_later(seconds, _give_up, ended)
    try:
        return await ended
    finally:
        timer.cancel()


def _give_up(ended: Ended) -> None:
    if not ended.done():
        ended.set_result(None)
