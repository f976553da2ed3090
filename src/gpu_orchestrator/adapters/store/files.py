"""What the store knows of files that owners have uploaded and tasks have left: whose they are, and until
when.

The files lie where large results do. `results` notes where, so that what deletes those deletes these.
"""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.tasks import Row, row_of
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

MOST_FILES = 10_000
"""Of one owner."""


class NewFile(Item, frozen=True):
    """`at` is where it is, as `ResultAt` writes it."""

    id: str
    owner: str
    name: str
    bytes: int
    sha256: str
    at: str


class Noted(Item, frozen=True):
    """Whether a file was noted, what its owner has besides, and when it expires."""

    noted: int
    bytes: int
    files: int
    expires_ms: int


class FileList(Item, frozen=True):
    ids: tuple[str, ...]
    total: int
    bytes: int


_ADD = Script[Noted]("file_add", Noted)
_FIND = Script[tuple[tuple[str, ...], ...]]("file_find", tuple[tuple[str, ...], ...])
_LIST = Script[FileList]("file_list", FileList)
_REMOVE = Script[int]("file_remove", int)


class Files:
    def __init__(self, fenced: FencedDatabase, *, keep_ms: int) -> None:
        self._fenced, self._keep_ms = fenced, keep_ms

    async def add(self, new: NewFile, *, most_bytes: int) -> Noted:
        """Note a file, if its owner then has at most `most_bytes` of files."""
        fields = (new.id, new.owner, new.name, new.bytes, new.sha256, new.at)
        return await self._fenced.read(_ADD, *fields, self._keep_ms, most_bytes, MOST_FILES)

    async def find(self, ids: Sequence[str], owner: str, *, use: bool = False) -> list[Row | None]:
        """Return files of this owner, or of any if none is given. With `use` they are kept longer."""
        found = await self._fenced.read(_FIND, owner, ids, self._keep_ms if use else 0)
        return [row_of(each) if each else None for each in found]

    async def of_owner(self, owner: str, skip: int, most: int) -> FileList:
        return await self._fenced.read(_LIST, owner, skip, most)

    async def remove(self, name: str, owner: str) -> bool:
        removed: int = await self._fenced.read(_REMOVE, owner, name)
        return bool(removed)
