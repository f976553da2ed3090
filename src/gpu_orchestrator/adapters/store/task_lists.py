"""Find tasks in the store: pages of lists, searches by type and label, ids by their start, positions of
queued tasks.

The store lists tasks by state, owner and worker. What is in no list is searched in short calls, one search at
a time: other clients of the store need not wait.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script
from gpu_orchestrator.api import task

MOST_SEARCHED, SEARCHED_AT_ONCE = 100_000, 1000


class Filter(msgspec.Struct, frozen=True):
    """Which tasks to list. Without `states`, those in any. `since_ms` is when the oldest was created; if
    negative, how long ago. A label without a value matches any value."""

    states: tuple[str, ...] = ()
    worker: str = ""
    owner: str = ""
    task_type: str = ""
    labels: tuple[tuple[str, ...], ...] = ()
    since_ms: int = 0

    @property
    def reads_rows(self) -> bool:
        """Return True if lists alone cannot answer: nothing is listed by type or label."""
        return bool(self.task_type or self.labels)


class Page(Item, frozen=True):
    """`complete` is 0 if there may be more tasks than `total`, which were not looked at."""

    total: int
    ids: tuple[str, ...]
    complete: int = 1


class Found(Item, frozen=True):
    """Ids with the wanted start; `state` and `cursor` are where to go on, `state` is 0 at the end."""

    ids: tuple[str, ...]
    state: int = 1
    cursor: str = "0"


_LIST = Script[Page]("list", Page)
_Searched = tuple[tuple[tuple[str, int], ...], tuple[int, ...], int]
_SEARCH = Script[_Searched]("search", _Searched)
_FIND = Script[Found]("find", Found)
_POSITIONS = Script[tuple[int, ...]]("positions", tuple[int, ...])


class TaskLists:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced
        self._searching = asyncio.Lock()

    async def page(
        self, *, states: Sequence[str] = (), worker: str = "", owner: str = "", offset: int, limit: int
    ) -> Page:
        return await self._list(Filter(tuple(states), worker, owner), offset, limit)

    async def search(self, wanted: Filter, *, offset: int, limit: int) -> Page:
        """Return a page of the tasks that match, newest first. By type and label, MOST_SEARCHED tasks are
        searched, fewer if their labels are large, those that have not ended first; in short calls, so that
        other clients of the store need not wait."""
        if wanted.worker or not wanted.reads_rows:
            return await self._list(wanted, offset, limit)
        found, left = await self._search_all(wanted, MOST_SEARCHED)
        # Those of each state are in order already, so this sorts in one pass.
        ids = [name for name, _ in sorted(found.items(), key=lambda each: each[1], reverse=True)]
        return Page(len(ids), tuple(ids[offset : offset + limit]), complete=int(left > 0))

    async def choose(self, wanted: Filter, *, most: int) -> Page:
        """Return up to `most` tasks that match, in any order, and how many match in all."""
        if wanted.worker or wanted.reads_rows:
            return await self.search(wanted, offset=0, limit=most)
        found, _ = await self._search_all(wanted, most)
        total = max((await self._list(wanted, 0, 1)).total, len(found))
        return Page(total, tuple(found)[:most])

    async def _search_all(self, wanted: Filter, most: int) -> tuple[dict[str, int], int]:
        """Search about `most` tasks; return when each that matches was created, and 0 if some were left."""
        found: dict[str, int] = {}
        left = most
        async with self._searching:
            for state in wanted.states or task.STATES:
                left = await self._search_state(wanted, state, left, found)
        return found, left

    async def _search_state(self, wanted: Filter, state: str, left: int, found: dict[str, int]) -> int:
        """Add the tasks in this state to those found, and return how many more may be searched: 0 if some
        were left. A task that changes its state meanwhile is found in the state after, mostly."""
        at: tuple[int, ...] = (0, 0)
        while at and left > 0:
            count = min(left, SEARCHED_AT_ONCE)
            arguments = (state, wanted.owner, wanted.since_ms, wanted.task_type, wanted.labels, at, count)
            matching, at, cost = await self._fenced.read(_SEARCH, *arguments)
            found.update(matching)
            left -= cost if at else 0
        return 0 if at else left

    async def find(self, start: str, *, owner: str = "", most: int) -> list[str]:
        """Return up to `most` tasks of this owner, or of any without one, whose id begins like this. `start`
        has letters, digits, - and _ alone: other characters may be wildcards of the store."""
        found: dict[str, None] = {}
        at = Found(())
        async with self._searching:
            while at.state and len(found) < most:
                at = await self._fenced.read(_FIND, owner, start, at.state, at.cursor, most)
                found.update(dict.fromkeys(at.ids))
        return list(found)[:most]

    async def positions(self, ids: Sequence[str]) -> dict[str, int]:
        """Return for each waiting task its place in the queue, from 1: by priority and age, roughly."""
        found = await self._fenced.read(_POSITIONS, ids)
        return {name: at for name, at in zip(ids, found, strict=True) if at}

    async def _list(self, wanted: Filter, offset: int, limit: int) -> Page:
        return await self._fenced.read(
            _LIST,
            wanted.states,
            wanted.worker,
            wanted.owner,
            offset,
            limit,
            wanted.since_ms,
            wanted.task_type,
            wanted.labels,
        )
