"""Words wait for a lull: while there is much to be done, events and the like stand back for it.

Never for long: a burst that goes on for more than `most_s` has to share the API server with them, but only
one word every `trickle_s`, lest all that stood back come at once. Used by the scheduler, for which pods are
to be bound, and by the operator, for which workloads are to be placed.
"""

import asyncio
from collections.abc import Callable

from gpu_orchestrator.adapters.background import wait_until_set

BUSY, CALM = 16, 4
MOST_S = 5.0


class Lull:
    def __init__(self, clock: Callable[[], float], most_s: float = MOST_S, trickle_s: float = 0.0) -> None:
        self._clock, self._most_s, self._trickle_s = clock, most_s, trickle_s
        self._turn = asyncio.Lock()
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
        """Whether there is much to be done now."""
        return self._busy_since is not None

    async def wait(self) -> None:
        """Until it is quiet, or one's turn has come all the same."""
        if self._busy_since is None:
            return
        await self._stand_back(self._busy_since + self._most_s - self._clock())
        if self._trickle_s and self.is_busy:
            async with self._turn:
                await self._stand_back(self._trickle_s)

    async def _stand_back(self, limit_s: float) -> None:
        if limit_s > 0:
            await wait_until_set(self._quiet, limit_s)
