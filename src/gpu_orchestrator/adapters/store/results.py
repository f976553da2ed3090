"""What the store knows of results that are not in their task's row, and of tasks that are forgotten early.

The store decides: a result counts once its task's row names it, and may be deleted once the row is gone.
"""

from collections.abc import Sequence
from os import urandom

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

FOLDER = "results:folder"


class Held(Item, frozen=True):
    """Ended tasks in the store, bytes of results outside it, and why tasks are forgotten just now, if they
    are."""

    ended: int
    result_bytes: int
    forgetting: str


class Forgotten(Item, frozen=True):
    """`begins` is 1 if no task was forgotten early in the last seconds. `left` are tasks that had to stay,
    such as those whose callback is due."""

    tasks: int
    store_bytes: int
    result_bytes: int
    begins: int
    left: int = 0


_DUE = Script[tuple[str, ...]]("results_due", tuple[str, ...])
_KNOWN = Script[tuple[int, ...]]("results_known", tuple[int, ...])
_RETENTION = Script[Held]("retention", Held)
_FORGET = Script[Forgotten]("forget", Forgotten)


class ResultIndex:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def folder(self) -> str:
        """Return the name of the folder of this store's results: two stores may share a disk or a bucket, and
        each must leave the other's results alone."""
        database = self._fenced.database
        found = await database.get(FOLDER) or await database.set_once(FOLDER, urandom(8).hex().encode())
        return found.decode()

    async def held(self) -> Held:
        return await self._fenced.read(_RETENTION)

    async def take_due(self, most: int) -> tuple[str, ...]:
        """Return results whose tasks were forgotten, for the caller to delete; the store forgets them now."""
        return await self._fenced.read(_DUE, most)

    async def known(self, places: Sequence[str]) -> tuple[int, ...]:
        return await self._fenced.read(_KNOWN, places)

    async def forget(
        self,
        why: str,
        *,
        most: int,
        store_bytes: int = 0,
        result_bytes: int = 0,
        older_than_ms: int = 0,
        skip: int = 0,
    ) -> Forgotten:
        """Forget ended tasks early, oldest first: `most` tasks, or fewer if these bytes are free then. `skip`
        those that earlier calls left."""
        return await self._fenced.read(_FORGET, why, most, store_bytes, result_bytes, older_than_ms, skip)
