"""Files that owners upload and tasks leave: taken as they arrive, kept where large results are, within the
bounds of their owner and of the disk.

A file arrives on the disk of this server, is then put into its place (a folder, or a bucket), and counts once
the store has noted it. What was left halfway is found and deleted with the orphans of results."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from os import urandom

from gpu_orchestrator.adapters.results.place import ResultAt, ResultError, ResultMissing, new_name
from gpu_orchestrator.adapters.results.spool import Spooled, TooLong, spool
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.files import MOST_FILES, NewFile
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import files
from gpu_orchestrator.api.units import MIB, show_memory
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.tasks.results import Results

AT_ONCE = 8
"""Files that may arrive at once for one owner, at this process."""
DISK_LEFT = 4
"""Leave this many times as much of the disk as the manager needs to take tasks."""


class Files:
    def __init__(self, store: Store, results: Results, settings: Settings) -> None:
        self._store, self._results = store, results
        self.most_bytes = int(settings.file_mb * MIB)
        self.most_of_owner = int(settings.files_mb * MIB)
        self._arriving: Counter[str] = Counter()
        self._arriving_bytes = 0

    async def take(self, owner: str, name: str, size: int, chunks: AsyncIterator[bytes]) -> Row:
        """Keep a file that arrives, and return its row; raise the `ApiError` that says why it is not kept."""
        await self.check_room(owner, size)
        name, file_id = files.plain_name(name), files.PREFIX + urandom(16).hex()
        with self._turn(owner, size):
            try:
                spooled = await spool(self._results.new_path(file_id), chunks, size)
            except TooLong as error:
                raise errors.BadRequest(f"more than the {size} bytes of Content-Length arrived") from error
            except ResultError as error:
                raise errors.Unavailable(f"the file cannot be taken: {error}") from error
            try:
                return await self._kept(
                    NewFile(file_id, owner, name, spooled.size, spooled.sha256, ""), spooled, size
                )
            finally:
                spooled.discard()

    async def _kept(self, new: NewFile, spooled: Spooled, size: int) -> Row:
        if spooled.size != size:
            raise errors.BadRequest(f"{spooled.size} of {size} bytes arrived; send the file again")
        try:
            at = await self._results.take(new_name(new.id, 0), spooled)
        except ResultError as error:
            raise errors.Unavailable(f"the file cannot be kept: {error}") from error
        new = NewFile(new.id, new.owner, new.name, new.bytes, new.sha256, str(at))
        noted = await self._store.files.add(new, most_bytes=self.most_of_owner)
        if not noted.noted:
            await self._results.delete([at])
            raise self._too_many(size, noted.bytes, noted.files)
        return {**await self.find(new.id, new.owner), "id": new.id}

    async def check_room(self, owner: str, size: int) -> None:
        """Raise the `ApiError` that says why a file of this size cannot be taken now."""
        known = await self._store.files.of_owner(owner, 0, 0)
        held, count = known.bytes, known.total
        if not self.most_bytes:
            raise errors.Conflict("this server takes no files (FILE_MB is 0)")
        if size > self.most_bytes:
            raise errors.TooLarge(
                f"the file has {size} bytes, and one may have {self.most_bytes} (FILE_MB)",
                limit_bytes=self.most_bytes,
            )
        if held + size > self.most_of_owner or count >= MOST_FILES:
            raise self._too_many(size, held, count)
        left = self._results.spool_left()
        if left.free - self._arriving_bytes - size < DISK_LEFT * left.low:
            raise errors.StoreFull(
                "there is not enough room for this file on the server's disk; try again later", 60.0
            )

    def _too_many(self, size: int, held: int, count: int) -> errors.ApiError:
        return errors.Conflict(
            f"your {count} files have {held} bytes; with {size} more they would be beyond "
            f"{show_memory(self.most_of_owner // MIB)} or {MOST_FILES} files (FILES_MB); delete some, "
            "or wait until they expire",
            held_bytes=held,
            files=count,
        )

    @contextmanager
    def _turn(self, owner: str, size: int) -> Iterator[None]:
        if self._arriving[owner] >= AT_ONCE:
            raise errors.TooManyRequests(
                f"{AT_ONCE} files arrive already; send the next when one has arrived"
            )
        self._arriving[owner] += 1
        self._arriving_bytes += size
        try:
            yield
        finally:
            self._arriving_bytes -= size
            self._arriving[owner] -= 1
            if not self._arriving[owner]:
                del self._arriving[owner]

    async def find(self, name: str, owner: str) -> Row:
        """Return the row of a file of this owner, or of any if none is given."""
        (row,) = await self._store.files.find([name], owner)
        if row is None:
            raise errors.NotFound(f"there is no file {name}, or no longer")
        return row

    async def use(self, names: Sequence[str], owner: str) -> str:
        """Keep files longer that a task names; return the first that is not there, empty if all are."""
        if not names:
            return ""
        found = await self._store.files.find(names, owner, use=True)
        return next((name for name, row in zip(names, found, strict=True) if row is None), "")

    async def open(self, row: Row) -> AsyncIterator[bytes]:
        """Return the bytes of a file; raise the `ApiError` that says why it cannot be read."""
        at = ResultAt.read(row["at"])
        chunks = self._results.read(at)
        try:
            first = await anext(chunks, b"")
        except ResultMissing as error:
            raise errors.NotFound(f"the file cannot be found: {error}") from error
        except ResultError as error:
            raise errors.Unavailable(f"the file cannot be read now: {error}") from error
        return _all(first, chunks)

    async def remove(self, name: str, owner: str) -> None:
        if not await self._store.files.remove(name, owner):
            raise errors.NotFound(f"there is no file {name}, or no longer")


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk
