"""The places that the leader keeps for large tasks, for other processes to show. Nobody decides by them: a
new leader finds its own."""

from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase

KEY = "kept-places"


class StoredPlaces:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def read(self) -> bytes:
        """Return what was written last, empty if nothing was. It says itself when that was."""
        return await self._fenced.database.get(KEY) or b""

    async def write(self, places: bytes) -> None:
        await self._fenced.database.set(KEY, places)
