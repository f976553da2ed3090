"""Pace low-priority writes such as events: while many jobs are under way, they wait.

They never wait for long: after `most_s` of continuous load they share the API server again, but only one
write per `trickle_s`, so that they do not all come at once. The scheduler counts pods to bind as jobs, the
operator workloads to place.
"""

import asyncio
from collections.abc import Callable

from gpu_orchestrator.adapters.background import wait_until_set

BUSY, CALM = 16, 4
MOST_S = 5.0


class Pacer:
    def __init__(self, clock: Callable[[], float], most_s: float = MOST_S, trickle_s: float = 0.0) -> None:
        self._clock, self._most_s, self._trickle_s = clock, most_s, trickle_s
        self._turn = asyncio.Lock()
        self._busy_since: float | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    def set(self, jobs: int) -> None:
        """Set how many jobs are under way."""
        if jobs >= BUSY and self._busy_since is None:
            self._busy_since = self._clock()
            self._quiet.clear()
        elif jobs <= CALM and self._busy_since is not None:
            self._busy_since = None
            self._quiet.set()

    @property
    def is_busy(self) -> bool:
        """True while many jobs are under way."""
        return self._busy_since is not None

    async def wait(self) -> None:
        """Wait until it is quiet, or until this write's turn has come anyway."""
        if self._busy_since is None:
            return
        await self._wait_for_quiet(self._busy_since + self._most_s - self._clock())
        if self._trickle_s and self.is_busy:
            async with self._turn:
                await self._wait_for_quiet(self._trickle_s)

    async def _wait_for_quiet(self, limit_s: float) -> None:
        if limit_s > 0:
            await wait_until_set(self._quiet, limit_s)
