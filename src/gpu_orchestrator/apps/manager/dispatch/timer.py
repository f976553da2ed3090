"""When the dispatcher looks again: one timer, and the tasks whose pause after a failure is not over."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Timer:
    """Calls `fire` at the earliest moment that was set since it last did."""

    fire: Callable[[], None]
    _handle: asyncio.TimerHandle | None = None
    _due: float = 0.0

    def set(self, delay_s: float | None) -> None:
        """Fire after this delay; None for never."""
        loop = asyncio.get_running_loop()
        due = None if delay_s is None else loop.time() + delay_s
        if self._handle and due is not None and self._due <= due:
            return  # an earlier one stays: steady news would put it off forever
        self.cancel()
        self._handle = None if delay_s is None else loop.call_later(delay_s, self._fire)
        self._due = due or 0.0

    def cancel(self) -> None:
        if self._handle:
            self._handle.cancel()
        self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self.fire()


@dataclass(slots=True)
class Delayed:
    """Tasks that must not begin before a moment, each with the attempts it had then."""

    _heap: list[tuple[float, str, int]] = field(default_factory=list)

    @property
    def next_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, due_s: float, name: str, attempt: int) -> None:
        heappush(self._heap, (due_s, name, attempt))

    def due(self, now: float) -> Iterator[tuple[str, int]]:
        """Take out and yield the tasks that may begin now."""
        while self._heap and self._heap[0][0] <= now:
            _, name, attempt = heappop(self._heap)
            yield name, attempt
