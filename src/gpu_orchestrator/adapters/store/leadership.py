"""Who leads: one process at a time decides placements. Its fence goes into every write, so a leader that was
away too long changes nothing when it wakes.
"""

import msgspec

from gpu_orchestrator.adapters.store.link import Link
from gpu_orchestrator.adapters.store.scripts import Script
from gpu_orchestrator.adapters.store.values import Leading, Told

_LEAD = Script[Leading]("lead", Leading)
_news = msgspec.msgpack.Decoder(Told)


class Leadership:
    def __init__(self, link: Link, *, owner: str, lease_ms: int) -> None:
        self._link, self.owner, self.lease_ms = link, owner, lease_ms

    async def strive(self) -> Leading:
        """Lead, go on leading, or learn who does. Sets the fence of this process's writes."""
        leading = await self._link.read(_LEAD, self.owner, self._link.fence, self.lease_ms, 0)
        self._link.fence = leading.fence
        return leading

    async def resign(self) -> None:
        """Also by a process that does not know whether it leads: what it asked for may have been granted."""
        fence, self._link.fence = self._link.fence, 0
        await self._link.read(_LEAD, self.owner, fence, self.lease_ms, 1)

    async def news(self, most: int = 1000) -> list[Told]:
        """What other processes did since the last call."""
        return [_news.decode(item) for item in await self._link.database.pop_news(most)]
