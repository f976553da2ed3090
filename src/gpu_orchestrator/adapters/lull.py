"""Words wait for a lull: while there is much to be done, events and the like stand back for it.

Never for long: a burst that goes on for more than `most_s` has to share the API server with them. Used by the
scheduler, for which pods are to be bound, and by the operator, for which workloads are to be placed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

BUSY, CALM = 16, 4
MOST_S = 5.0


class Lull:
    def __init__(self, clock: Callable[[], float], most_s: float = MOST_S) -> None:
        self._clock, self._most_s = clock, most_s
        self._busy_since: float | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    def set(self, jobs: int) -> None:
        """So many jobs are in hand now."""
        if jobs >= BUSY and self._busy_since is None:
            self._busy_since = self._clock()
            self._quiet.clear()
        elif jobs <= CALM and self._busy_since is not None:
            self._busy_since = None
            self._quiet.set()

    @property
    def is_busy(self) -> bool:
        """Whether others should stand back now."""
        return self._left_s() > 0

    def _left_s(self) -> float:
        return 0.0 if self._busy_since is None else self._busy_since + self._most_s - self._clock()

    async def wait(self) -> None:
        left_s = self._left_s()
        if left_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._quiet.wait()
