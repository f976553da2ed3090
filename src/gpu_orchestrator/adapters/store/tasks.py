"""Tasks in the store. Every call takes many at once and is one script: it happens as a whole or not."""

from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.records import (
    ANY_NUMBER,
    Assigned,
    Assignment,
    Given,
    Item,
    KeyConflict,
    Limit,
    Moved,
    NewTask,
    NoRoom,
    NotAssigned,
    Note,
    Outcome,
    Snapshot,
    Submitted,
    Taken,
    Unit,
)
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

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


class Retried(Item, frozen=True):
    """The state before (empty if unknown)."""

    state: str


class Page(Item, frozen=True):
    total: int
    ids: tuple[str, ...]


class Counts(msgspec.Struct, frozen=True):
    now_ms: int
    states: dict[str, int]
    stats: dict[str, int]
    workers: tuple[str, ...]
    leader: str


OTHER_CONTENT = -1
"""What `submit` answers in place of `Taken.fresh` for a conflict; a value of `Limit` is a request without
room, and then `created_ms` is ms until the next day for `DAY_BUDGET`."""

_Given = tuple[tuple[str, ...], ...]
"""For each assignment `(parameters, correlation id)`, or `(why not,)`."""
_Retried = tuple[str, int, int]
"""`(state before, 0 or a code of Limit, ms until the next day)`."""
_Flat = tuple[str | int, ...]
_SUBMIT = Script[tuple[tuple[Taken, ...], _Given]]("submit", tuple[tuple[Taken, ...], _Given])
_IDEMPOTENCY_CONFLICTS = Script[tuple[str, ...]]("idempotency_conflicts", tuple[str, ...])
_ASSIGN = Script[_Given | bool]("assign", _Given | bool)
_NOTE = Script[bool]("note", bool)
_FINISH = Script[tuple[Settled, ...]]("finish", tuple[Settled, ...])
_CANCEL = Script[tuple[Asked, ...]]("cancel", tuple[Asked, ...])
_RETRY = Script[tuple[_Retried, ...]]("retry", tuple[_Retried, ...])
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
    def __init__(self, fenced: FencedDatabase, *, keep_ms: int = 7 * DAY_MS) -> None:
        self._fenced, self.keep_ms = fenced, keep_ms

    async def submit(
        self, tasks: Sequence[NewTask], units: Sequence[Unit] = (), unit_of: Sequence[int] = ()
    ) -> list[Submitted]:
        """`unit_of` says for each task the number of its unit, from 1. Without units all are taken."""
        taken, _ = await self._fenced.write(_SUBMIT, DAY_MS, 0, tasks, (), units, unit_of)
        return _submitted(taken)

    async def conflicts(self, wishes: Sequence[NewTask]) -> tuple[str, ...]:
        """For each the task that has its idempotency key and another content; empty if none has."""
        return await self._fenced.read(
            _IDEMPOTENCY_CONFLICTS, [(each.idempotency, each.spec, each.params) for each in wishes]
        )

    async def submit_and_assign(
        self,
        tasks: Sequence[NewTask],
        assignments: Sequence[Assignment],
        units: Sequence[Unit] = (),
        unit_of: Sequence[int] = (),
    ) -> tuple[list[Submitted], list[Given]]:
        """For a leader's dispatcher that knows already where some of them go: one write for both. It is not
        told of these tasks, it has them."""
        taken, given = await self._fenced.write(_SUBMIT, DAY_MS, 1, tasks, assignments, units, unit_of)
        return _submitted(taken), [_given(*each) for each in given]

    async def assign(self, assignments: Sequence[Assignment]) -> list[Given] | None:
        """None for who does not lead."""
        given = await self._fenced.write(_ASSIGN, assignments)
        return None if isinstance(given, bool) else [_given(*each) for each in given]

    async def note(self, notes: Sequence[Note]) -> None:
        await self._fenced.read(_NOTE, notes)

    async def finish(self, outcomes: Sequence[Outcome]) -> tuple[Settled, ...]:
        return await self._fenced.write(_FINISH, self.keep_ms, outcomes)

    async def cancel(self, ids: Sequence[str], *, owner: str = "") -> tuple[Asked, ...]:
        """Only tasks of this owner; without one, everybody's."""
        return await self._fenced.write(_CANCEL, self.keep_ms, owner, ids)

    async def retry(
        self, ids: Sequence[str], *, owner: str = "", may: Unit = ANY_NUMBER
    ) -> list[Retried | NoRoom]:
        """As far as `may` has room for them."""
        return [_retried(*each) for each in await self._fenced.write(_RETRY, owner, ids, may)]

    async def snapshot(self, lease_ms: int) -> Snapshot | None:
        """Everything a new leader must know; None for who does not lead."""
        found = await self._fenced.write(_SNAPSHOT, lease_ms)
        return None if isinstance(found, bool) else found

    async def fetch(self, ids: Sequence[str], *, parameters: bool = False) -> list[Row | None]:
        """Rows as they are stored, without `parameters` unless wanted; None for what is not there."""
        _, rows, _ = await self._fenced.read(_FETCH, ids, (), int(parameters))
        return [row_of(row) for row in rows]

    async def page(
        self, *, states: Sequence[str] = (), worker: str = "", owner: str = "", offset: int, limit: int
    ) -> Page:
        return await self._fenced.read(_LIST, states, worker, owner, offset, limit)

    async def trim(self, most_per_worker: int = 1000) -> int:
        return await self._fenced.read(_TRIM, self.keep_ms, most_per_worker)

    async def counts(self) -> Counts:
        now, states, stats, workers, leader = await self._fenced.read(_COUNTS)
        return Counts(now, _numbers(states), _numbers(stats), workers, leader[0])


def _submitted(answers: Sequence[Taken]) -> list[Submitted]:
    return [each if each.fresh >= 0 else _not_taken(each) for each in answers]


def _not_taken(answer: Taken) -> KeyConflict | NoRoom:
    if answer.fresh == OTHER_CONTENT:
        return KeyConflict(answer.id)
    return _no_room(answer.fresh, answer.created_ms)


def _retried(state: str, code: int, day_left_ms: int) -> Retried | NoRoom:
    return _no_room(code, day_left_ms) if code else Retried(state)


def _no_room(code: int, day_left_ms: int) -> NoRoom:
    limit = Limit(code)
    return NoRoom(limit, day_left_ms if limit is Limit.DAY_BUDGET else 0)


def _given(first: str, correlation: str | None = None) -> Given:
    """A refusal is one word, without a correlation id."""
    return NotAssigned(Moved(first)) if correlation is None else Assigned(first, correlation)


def row_of(flat: _Flat) -> Row | None:
    if not flat:
        return None
    return {str(flat[at]): str(flat[at + 1]) for at in range(0, len(flat), 2)}


def _numbers(flat: _Flat) -> dict[str, int]:
    return {str(flat[at]): int(flat[at + 1]) for at in range(0, len(flat), 2)}
