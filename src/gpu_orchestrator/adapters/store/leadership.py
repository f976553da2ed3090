"""Leader election: one process at a time decides placements. Its fence goes with every write, so a leader
that stalled past its term cannot change anything when it resumes.
"""

import msgspec

from gpu_orchestrator.adapters.store.records import ElectionResult, Fence, NewsItem
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

_ELECT = Script[ElectionResult]("elect", ElectionResult)
_news = msgspec.msgpack.Decoder(NewsItem)


class Leadership:
    def __init__(self, fenced: FencedDatabase, *, owner: str, lease_ms: int) -> None:
        self._fenced, self.owner, self.lease_ms = fenced, owner, lease_ms
        self._highest: Fence = 0
        """The latest fence that this process knows of. A store that failed over may have lost it."""

    async def campaign(self) -> ElectionResult:
        """Acquire or renew leadership, or learn which process leads. Sets the fence for this process's
        writes."""
        leading = await self._elect(self._fenced.fence)
        self._fenced.fence = leading.fence
        return leading

    async def resign(self) -> None:
        """Step down. Also called when this process does not know whether it leads: its last election call may
        have succeeded although the answer was lost."""
        fence, self._fenced.fence = self._fenced.fence, 0
        await self._elect(fence, step_down=True)

    async def _elect(self, fence: Fence, *, step_down: bool = False) -> ElectionResult:
        leading = await self._fenced.read(
            _ELECT, self.owner, fence, self.lease_ms, int(step_down), self._highest
        )
        self._highest = max(self._highest, leading.highest)
        return leading

    async def news(self, most: int = 1000) -> list[NewsItem]:
        """Return the changes that other processes made since the last call."""
        return [_news.decode(item) for item in await self._fenced.database.pop_news(most)]
