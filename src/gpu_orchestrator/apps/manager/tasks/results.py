"""Results of tasks: small ones are kept in their task's row, large ones in files or an S3-compatible store.

`Outcomes` writes a large result before the store commits it. The routes and callbacks read it through here,
and `Retention` deletes it once the store has forgotten the task.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import structlog

from gpu_orchestrator.adapters.disk import Disk, Left
from gpu_orchestrator.adapters.results.files import UNFINISHED, ResultFiles
from gpu_orchestrator.adapters.results.place import (
    ResultAt,
    ResultError,
    ResultMissing,
    ResultPlace,
    new_name,
)
from gpu_orchestrator.adapters.results.s3 import Bucket, S3Results
from gpu_orchestrator.adapters.results.signing import Credentials
from gpu_orchestrator.adapters.results.spool import Spooled
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.apps.manager.views import size_of

log = structlog.get_logger()

RETRY_S = 1.0
"""Pause before a result that could not be written is written again."""


class Results:
    """`trouble` says why results cannot be written now; empty while they can."""

    def __init__(self, settings: Settings, *, sync: bool) -> None:
        """`sync`: a result must be on disk before the store commits it."""
        self._settings, self._sync = settings, sync
        self.inline_bytes = int(settings.result_inline_kb * 1024)
        self.shown_bytes = int(settings.result_shown_kb * 1024)
        self.folder = Path(settings.results_dir or Path(settings.data_dir) / "results")
        self.disk = Disk(self.folder)
        self.trouble = ""
        self._files = ResultFiles(self.folder, sync=sync)
        self._s3: S3Results | None = None

    def use_folder(self, name: str) -> None:
        """Keep this store's results apart from those of others, under a name of its own."""
        self._files = ResultFiles(self.folder / name, sync=self._sync)
        chosen = self._settings
        if chosen.results_s3_bucket:
            credentials = Credentials(
                chosen.results_s3_access_key, chosen.results_s3_secret_key, chosen.results_s3_region
            )
            prefix = f"{chosen.results_s3_prefix}{name}/"
            self._s3 = S3Results(
                Bucket(chosen.results_s3_endpoint, chosen.results_s3_bucket, prefix, credentials)
            )

    def disk_left(self) -> Left | None:
        """Return how much room is left for results on this machine's disk; None if they go to a bucket."""
        return None if self._settings.results_s3_bucket else self.disk.left()

    def disk_shortage(self) -> str:
        """Return what is wrong with that disk; empty if there is room, or if results go to a bucket."""
        return "" if self._settings.results_s3_bucket else self.disk.shortage()

    @property
    def places(self) -> list[ResultPlace]:
        """Where results may be: those written before S3 was set up are still files."""
        return [self._files, *([self._s3] if self._s3 else [])]

    def is_large(self, result: bytes) -> bool:
        return len(result) > self.inline_bytes

    async def write(self, task: str, attempt: int, result: bytes) -> ResultAt:
        """Write a large result; retry until that succeeds. The worker keeps it until it is committed."""
        place: ResultPlace = self._s3 or self._files
        name = new_name(task, attempt)
        while True:
            try:
                await place.write(name, result)
            except ResultError as error:
                if str(error) != self.trouble:
                    log.error("a result cannot be written; retrying", task_id=task, error=str(error))
                self.trouble = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                self.trouble = ""
                return ResultAt(place.kind, len(result), name)

    def new_path(self, name: str) -> Path:
        """Return where a file may be put together before it is taken."""
        return self._files.folder / name[-2:] / f"{name}{UNFINISHED}"

    def spool_left(self) -> Left:
        """Return how much room is left where files arrive, also if they go to a bucket then."""
        return self.disk.left()

    async def take(self, name: str, arrived: Spooled) -> ResultAt:
        """Keep a file that has arrived; raise `ResultError`."""
        place: ResultPlace = self._s3 or self._files
        await place.take(name, arrived.path, arrived.size, arrived.sha256)
        return ResultAt(place.kind, arrived.size, name)

    def read(self, at: ResultAt) -> AsyncIterator[bytes]:
        return self._place(at).stream(at.name)

    async def whole(self, row: Row) -> Row:
        """Return the row with its result, if that is not larger than what is shown whole. A result that
        cannot be read is left out: its own route says why."""
        if not row.get("result_at") and 4 * len(row.get("result", "")) <= self.shown_bytes:
            return row  # a character has at most 4 bytes
        size = size_of(row)
        if size > self.shown_bytes:
            return {**row, "result": "", "result_bytes": str(size)}
        if not row.get("result_at") or row.get("result"):
            return row
        try:
            data = b"".join([chunk async for chunk in self.stream(row)])
        except ResultError:
            return row
        return {**row, "result": data.decode()}

    def stream(self, row: Row) -> AsyncIterator[bytes]:
        """Yield the bytes of a result that is not in the row."""
        at = ResultAt.read(row["result_at"])
        return self._place(at).stream(at.name)

    async def delete(self, places: Iterable[ResultAt]) -> None:
        by_kind: dict[str, list[ResultAt]] = {}
        for each in places:
            by_kind.setdefault(each.kind, []).append(each)
        for group in by_kind.values():
            try:
                await self._place(group[0]).delete([each.name for each in group])
            except ResultError as error:  # a sweep finds those that stay
                log.warning("results could not be deleted", results=len(group), error=str(error))

    async def close(self) -> None:
        for place in self.places:
            await place.close()

    def _place(self, at: ResultAt) -> ResultPlace:
        if at.kind == "file":
            return self._files
        if self._s3 is None:
            raise ResultMissing("it is in an S3 bucket, and this server has none: set RESULTS_S3_BUCKET")
        return self._s3
