"""Run coroutines in the background, and wait for an event for a limited time.

The event loop keeps only a weak reference to a task: a task without another reference may be collected before
it ends. `BackgroundTasks` holds each task until then.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class BackgroundTasks:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self) -> None:
        """Wait for all tasks, including those that start meanwhile. If the wait is cancelled, cancel them and
        wait for their end. What they raise is dropped: the work itself reports its failures."""
        try:
            while self._running:
                await asyncio.gather(*self._running, return_exceptions=True)
        finally:
            self.cancel()

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()


async def wait_until_set(event: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, or after `timeout_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
