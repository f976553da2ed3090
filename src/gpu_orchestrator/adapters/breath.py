"""Let other tasks run during long work on the event loop, so that no renewal of a lease and no bind waits for
all of it."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

SLICE_S = 0.02

T = TypeVar("T")


class Breath:
    """Give the event loop back whenever the caller has used it for `slice_s`. Call it between two steps."""

    def __init__(self, clock: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._clock, self._slice_s, self._since = clock, slice_s, clock()

    def is_due(self) -> bool:
        """Return True if it is time to let others run. Very short steps ask before they await."""
        return self._clock() - self._since >= self._slice_s

    async def __call__(self) -> None:
        if self.is_due():
            await asyncio.sleep(0)
            self._since = self._clock()

    async def through(self, steps: Iterable[object]) -> None:
        """Do all steps, and breathe between them."""
        for _ in steps:
            if self.is_due():
                await self()

    async def result_of(self, steps: Generator[None, None, T]) -> T:
        """Do all steps, breathe between them, and return their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self.is_due():
                await self()
