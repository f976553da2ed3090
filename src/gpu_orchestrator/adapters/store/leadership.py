"""Who leads: one process at a time decides placements. Its fence goes into every write, so a leader that was
away too long changes nothing when it wakes.
"""

import msgspec

from gpu_orchestrator.adapters.store.records import Leading, Told
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

_ELECT = Script[Leading]("elect", Leading)
_news = msgspec.msgpack.Decoder(Told)


class Leadership:
    def __init__(self, fenced: FencedDatabase, *, owner: str, lease_ms: int) -> None:
        self._fenced, self.owner, self.lease_ms = fenced, owner, lease_ms

    async def strive(self) -> Leading:
        """Lead, go on leading, or learn who does. Sets the fence of this process's writes."""
        leading = await self._fenced.read(_ELECT, self.owner, self._fenced.fence, self.lease_ms, 0)
        self._fenced.fence = leading.fence
        return leading

    async def resign(self) -> None:
        """Also by a process that does not know whether it leads: what it asked for may have been granted."""
        fence, self._fenced.fence = self._fenced.fence, 0
        await self._fenced.read(_ELECT, self.owner, fence, self.lease_ms, 1)

    async def news(self, most: int = 1000) -> list[Told]:
        """What other processes did since the last call."""
        return [_news.decode(item) for item in await self._fenced.database.pop_news(most)]
