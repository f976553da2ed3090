"""Tasks in the store. Every call takes many at once and is one script: it happens as a whole or not."""

from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.link import Link
from gpu_orchestrator.adapters.store.scripts import Script
from gpu_orchestrator.adapters.store.values import (
    Assignment,
    Item,
    NewTask,
    Note,
    Outcome,
    Snapshot,
    Taken,
    Unit,
)

DAY_MS = 86_400_000
Row = dict[str, str]


class Settled(Item, frozen=True):
    """`counted` is 0 for what came too late; `state` is the task's now; `row` is there if it was wanted."""

    counted: int
    state: str
    row: tuple[str, ...] = ()


class Asked(Item, frozen=True):
    """A cancellation: the state before (empty if unknown), and who runs it."""

    state: str
    worker: str
    attempt: int
    api: str


class Page(Item, frozen=True):
    total: int
    ids: tuple[str, ...]


class Counts(msgspec.Struct, frozen=True):
    now_ms: int
    states: dict[str, int]
    stats: dict[str, int]
    workers: tuple[str, ...]
    leader: str
    leader_until_ms: int


Given = tuple[tuple[str, ...], ...]
"""For each assignment `(parameters, correlation id)`, or `(why not,)`."""

_Flat = tuple[str | int, ...]
_SUBMIT = Script[tuple[tuple[Taken, ...], Given]]("submit", tuple[tuple[Taken, ...], Given])
_ASSIGN = Script[Given | bool]("assign", Given | bool)
_NOTE = Script[bool]("note", bool)
_FINISH = Script[tuple[Settled, ...]]("finish", tuple[Settled, ...])
_CANCEL = Script[tuple[Asked, ...]]("cancel", tuple[Asked, ...])
_RETRY = Script[tuple[str, ...]]("retry", tuple[str, ...])
_SNAPSHOT = Script[Snapshot | bool]("snapshot", Snapshot | bool)
_FETCH = Script[tuple[int, tuple[_Flat, ...], tuple[_Flat, ...]]](
    "fetch", tuple[int, tuple[_Flat, ...], tuple[_Flat, ...]]
)
_LIST = Script[Page]("list", Page)
_TRIM = Script[int]("trim", int)
_COUNTS = Script[tuple[int, _Flat, _Flat, tuple[str, ...], tuple[str, str, str]]](
    "counts", tuple[int, _Flat, _Flat, tuple[str, ...], tuple[str, str, str]]
)


class Tasks:
    def __init__(self, link: Link, *, keep_ms: int = 7 * DAY_MS) -> None:
        self._link, self.keep_ms = link, keep_ms

    async def submit(
        self, tasks: Sequence[NewTask], units: Sequence[Unit] = (), unit_of: Sequence[int] = ()
    ) -> tuple[Taken, ...]:
        """`unit_of` says for each task the number of its unit, from 1. Without units all are taken."""
        return (await self._link.write(_SUBMIT, DAY_MS, 0, tasks, (), units, unit_of))[0]

    async def submit_and_assign(
        self,
        tasks: Sequence[NewTask],
        assignments: Sequence[Assignment],
        units: Sequence[Unit] = (),
        unit_of: Sequence[int] = (),
    ) -> tuple[tuple[Taken, ...], Given]:
        """For a leader's dispatcher that knows already where some of them go: one write for both. It is not
        told of these tasks, it has them."""
        return await self._link.write(_SUBMIT, DAY_MS, 1, tasks, assignments, units, unit_of)

    async def assign(self, assignments: Sequence[Assignment]) -> Given | None:
        """None for who does not lead."""
        given = await self._link.write(_ASSIGN, assignments)
        return None if isinstance(given, bool) else given

    async def note(self, notes: Sequence[Note]) -> None:
        await self._link.read(_NOTE, notes)

    async def finish(self, outcomes: Sequence[Outcome]) -> tuple[Settled, ...]:
        return await self._link.write(_FINISH, self.keep_ms, outcomes)

    async def cancel(self, ids: Sequence[str], *, owner: str = "") -> tuple[Asked, ...]:
        """Only tasks of this owner; without one, everybody's."""
        return await self._link.write(_CANCEL, self.keep_ms, owner, ids)

    async def retry(self, ids: Sequence[str], *, owner: str = "") -> tuple[str, ...]:
        return await self._link.write(_RETRY, owner, ids)

    async def snapshot(self, lease_ms: int) -> Snapshot | None:
        """Everything a new leader must know; None for who does not lead."""
        found = await self._link.write(_SNAPSHOT, lease_ms)
        return None if isinstance(found, bool) else found

    async def fetch(self, ids: Sequence[str]) -> list[Row | None]:
        """Rows as they are stored; None for what is not there."""
        _, rows, _ = await self._link.read(_FETCH, ids, ())
        return [row_of(row) for row in rows]

    async def page(
        self, *, states: Sequence[str] = (), worker: str = "", owner: str = "", offset: int, limit: int
    ) -> Page:
        return await self._link.read(_LIST, states, worker, owner, offset, limit)

    async def trim(self, most_per_worker: int = 1000) -> int:
        return await self._link.read(_TRIM, self.keep_ms, most_per_worker)

    async def counts(self) -> Counts:
        now, states, stats, workers, leader = await self._link.read(_COUNTS)
        return Counts(now, _numbers(states), _numbers(stats), workers, leader[0], int(leader[2]))


def row_of(flat: _Flat) -> Row | None:
    if not flat:
        return None
    return {str(flat[at]): str(flat[at + 1]) for at in range(0, len(flat), 2)}


def _numbers(flat: _Flat) -> dict[str, int]:
    return {str(flat[at]): int(flat[at + 1]) for at in range(0, len(flat), 2)}
