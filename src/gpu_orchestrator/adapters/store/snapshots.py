"""What a new leader reads from the store: workers, then all unfinished tasks, page by page.

Pages are bounded, so that neither the store nor this process is held up by a long queue. Tasks change between
two pages; from `begin` on the store sends news of that, and the leader applies the news after the pages.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gpu_orchestrator.adapters.store.records import Snapshot, SnapshotPage, UnfinishedTask
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

PAGE = 1000
STATES = ("assigned", "running", "queued")
"""In the order in which a task passes them while nobody assigns tasks: none can be missed on its way."""

_BEGIN = Script[Snapshot | bool]("snapshot", Snapshot | bool)
_PAGE = Script[SnapshotPage | bool]("snapshot_page", SnapshotPage | bool)
_RECOUNT = Script[bool]("recount_levels", bool)


class Snapshots:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def begin(self, lease_ms: int) -> Snapshot | None:
        """Begin a term; return None if this process does not lead."""
        found = await self._fenced.write(_BEGIN, lease_ms)
        return None if isinstance(found, bool) else found

    async def pages(
        self, snapshot: Snapshot, size: int = PAGE
    ) -> AsyncGenerator[tuple[UnfinishedTask, ...], None]:
        """Yield all unfinished tasks, those with workers first, and correct the numbers by priority level.
        Raises `NotLeading` if this process does not lead any more."""
        levels: Counter[str] = Counter()
        for state in STATES:
            async with aclosing(self._in_state(state, size)) as pages:
                async for page in pages:
                    levels.update(dict(zip(page.levels[::2], map(int, page.levels[1::2]), strict=True)))
                    yield page.tasks
        counted = [text for level, number in levels.items() for text in (level, str(number))]
        await self._fenced.write(_RECOUNT, snapshot.levels, counted)

    async def _in_state(self, state: str, size: int) -> AsyncGenerator[SnapshotPage, None]:
        """Yield the pages of one state; the store reads the next one while the caller works on this one."""
        following: asyncio.Task[SnapshotPage] | None = asyncio.ensure_future(self._page(state, size, "", ""))
        try:
            while following is not None:
                page, following = await following, None
                if page.last:
                    following = asyncio.ensure_future(self._page(state, size, page.last_at, page.last))
                    await asyncio.sleep(0)  # so that it is sent before the caller begins
                yield page
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _page(self, state: str, size: int, at: str, last: str) -> SnapshotPage:
        page = await self._fenced.write(_PAGE, state, size, at, last)
        if isinstance(page, bool):
            raise NotLeading
        return page


class NotLeading(Exception):
    """Another process leads, or this one lost its fence."""
