"""The registry of models in the store. There are few, so a process reads all of them, and only when their
version has changed.
"""

from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

MOST_MODELS = 1000


class ModelRow(Item, frozen=True):
    """One model. `declared` is what an operator wrote and `measured` what workers found out, both as JSON and
    empty if there is none; `pins` are the workers that must not evict it, separated by spaces."""

    name: str
    declared: str
    measured: str
    pins: str
    created_ms: int = 0


class ModelPage(Item, frozen=True):
    """`rows` is None if the version is the one that the caller knows."""

    version: int
    rows: tuple[ModelRow, ...] | None


_Answer = tuple[int, tuple[ModelRow, ...] | bool]
_MODELS = Script[_Answer]("models", _Answer)
Saved = Literal["saved", "full", "unknown"]
_SAVE = Script[Saved]("model_save", Saved)


class StoredModels:
    def __init__(self, fenced: FencedDatabase, *, most: int = MOST_MODELS) -> None:
        self._fenced, self.most = fenced, most

    async def look(self, known_version: int = -1) -> ModelPage:
        version, rows = await self._fenced.read(_MODELS, known_version)
        return ModelPage(version, None if isinstance(rows, bool) else rows)

    async def declare(self, name: str, declared: str) -> Saved:
        """Write what an operator says about a model. What was measured of an earlier one is dropped."""
        return await self._save("declare", name, declared)

    async def measure(self, name: str, measured: str) -> Saved:
        return await self._save("measure", name, measured)

    async def pin(self, name: str, worker: str, *, pinned: bool) -> Saved:
        return await self._save("pin" if pinned else "unpin", name, worker)

    async def forget(self, name: str) -> Saved:
        return await self._save("forget", name, "")

    async def _save(self, change: str, name: str, value: str) -> Saved:
        return await self._fenced.read(_SAVE, self.most, change, name, value)
