"""API keys in the store, which holds only their hashes. There are few, so a process reads all of them, and
only when their version has changed.
"""

from collections.abc import Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


class KeyRow(Item, frozen=True):
    """One key. `digest` is SHA-256 in hex, `scopes` are separated by commas, `by` is the key that created it,
    `limits` is JSON. A time of 0 means never. `worker` is the one worker that may join with it, empty until
    the first has; `*` for any number of workers."""

    id: str
    digest: str
    name: str
    owner: str
    scopes: str
    created_ms: int = 0
    expires_ms: int = 0
    revoked_ms: int = 0
    used_ms: int = 0
    by: str = ""
    limits: str = ""
    worker: str = "*"


class KeyPage(Item, frozen=True):
    """`rows` is None if the version is the one that the caller knows. `configured_used` alternates ids and
    last uses in ms of keys that come from settings and have no row."""

    version: int
    rows: tuple[KeyRow, ...] | None
    configured_used: tuple[str, ...] = ()


_Answer = tuple[int, tuple[KeyRow, ...] | bool, tuple[str, ...]]
_KEYS = Script[_Answer]("keys", _Answer)
_SAVE = Script[Literal["saved", "full"]]("key_save", Literal["saved", "full"])
_REVOKE = Script[bool]("key_revoke", bool)


class StoredKeys:
    """Stores at most `most` keys. Expired and revoked keys stay for `keep_ms`, so that they can be looked
    up."""

    def __init__(self, fenced: FencedDatabase, *, keep_ms: int, most: int = 10_000) -> None:
        self._fenced, self.keep_ms, self.most = fenced, keep_ms, most

    async def look(self, known_version: int = -1, used: Sequence[tuple[str, int]] = ()) -> KeyPage:
        """Return all keys if they changed since `known_version`. Store the last-used times in `used`: `(id,
        ms)`."""
        version, rows, configured = await self._fenced.read(_KEYS, known_version, used)
        return KeyPage(version, None if isinstance(rows, bool) else rows, configured)

    async def save(self, row: KeyRow) -> Literal["saved", "full"]:
        return await self._fenced.read(_SAVE, self.keep_ms, self.most, row)

    async def revoke(self, id_: str) -> bool:
        """Revoke a key permanently; return False if it does not exist."""
        return await self._fenced.read(_REVOKE, id_)
