"""What the autoscaler decided, in the store: a new leader goes on from there."""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

_SAVE = Script[bool]("scale_save", bool)
KEY = "scaling"


class Scaling:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def read(self) -> bytes:
        """Return the state as JSON; empty if there is none yet."""
        return await self._fenced.database.get(KEY) or b""

    async def save(self, state: bytes, events: Sequence[bytes]) -> bool:
        """Write the state, and an event for each step. Return False, and write nothing, if this process does
        not lead."""
        return await self._fenced.write(_SAVE, state.decode(), [each.decode() for each in events])
