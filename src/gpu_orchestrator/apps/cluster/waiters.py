"""Those who wait for tasks to end. What ends through this process wakes them at once; what ends through
another is told by the store."""

import asyncio
from collections.abc import Callable


class Waiters:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ended(self, task: str) -> None:
        for event in self._waiting.get(task, ()):
            event.set()

    def expect(self, task: str) -> tuple[asyncio.Event, Callable[[], None]]:
        """An event for the end of a task, and what to call when nobody waits any more."""
        event = asyncio.Event()
        self._waiting.setdefault(task, set()).add(event)

        def forget() -> None:
            waiting = self._waiting.get(task)
            if waiting is not None:
                waiting.discard(event)
                if not waiting:
                    del self._waiting[task]

        return event, forget
