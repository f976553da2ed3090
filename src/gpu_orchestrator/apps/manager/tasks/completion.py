"""Callers that wait for tasks to end. A task that ends through this process resolves their futures at once,
with the task's row. For a task that ends through another process the store publishes its id; the futures then
have no row, and the callers read it from the store."""

import asyncio

from gpu_orchestrator.adapters.store.tasks import Row

Completion = asyncio.Future[Row | None]


class CompletionWaiters:
    def __init__(self) -> None:
        self._waiting: dict[str, set[Completion]] = {}

    def __contains__(self, task: str) -> bool:
        return task in self._waiting

    def ended(self, task: str, row: Row | None = None) -> None:
        """Resolve all futures for the task. Without a row the callers read it from the store."""
        for each in self._waiting.get(task, ()):
            if not each.done():
                each.set_result(row)

    def join(self, task: str) -> Completion:
        """Return a future for the task's completion; the caller must call `leave`."""
        completion: Completion = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task, set()).add(completion)
        return completion

    def leave(self, task: str, completion: Completion) -> None:
        waiting = self._waiting[task]
        waiting.discard(completion)
        if not waiting:
            del self._waiting[task]


async def within(completion: Completion, seconds: float) -> Row | None:
    """Wait for the row; None if it does not arrive in time."""
    timer = asyncio.get_running_loop().call_later(seconds, _give_up, completion)
    try:
        return await completion
    finally:
        timer.cancel()


def _give_up(completion: Completion) -> None:
    if not completion.done():
        completion.set_result(None)
