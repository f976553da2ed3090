"""Tasks in the store. Every call handles many tasks in one script, which takes effect as a whole or not at
all."""

from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.records import (
    ANY_NUMBER,
    Accepted,
    Assigned,
    Assignment,
    AssignResult,
    Breaker,
    Item,
    KeyConflict,
    Limit,
    Moved,
    NewTask,
    NoRoom,
    NotAssigned,
    Note,
    Outcome,
    Submitted,
    Unit,
)
from gpu_orchestrator.adapters.store.task_lists import TaskLists
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

DAY_MS = 86_400_000
Row = dict[str, str]


class FinishResult(Item, frozen=True):
    """`counted` is 0 if the outcome came too late; `state` is the task's current one; `row` is set if it was
    `wanted`. `others` are the ids of other members of its gang that ended by it, in the same state."""

    counted: int
    state: str
    row: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class CancelResult(Item, frozen=True):
    """`state` is the one before (empty if the task is unknown); `worker` runs the task. `others` are the ids
    of other members of its gang that ended with it."""

    state: str
    worker: str
    attempt: int
    api: str
    others: tuple[str, ...] = ()


class Retried(Item, frozen=True):
    """`state` is the one before (empty if the task is unknown)."""

    state: str


class DueResult(Item, frozen=True):
    """`more` is 1 if more tasks are due; `ended` are the ids of tasks that expired. `schedules` is 1 if some
    are due."""

    more: int
    ended: tuple[str, ...]
    schedules: int = 0


class LinksResult(Item, frozen=True):
    """`more` is 1 if more is to be done; `cancelled` are the ids of tasks whose dependency failed."""

    more: int
    cancelled: tuple[str, ...]


class Dependency(Item, frozen=True):
    """A task that another is to depend on; `state` is empty if it is unknown. `waiting` tasks depend on it
    already."""

    owner: str
    state: str
    waiting: int


class Counts(msgspec.Struct, frozen=True):
    now_ms: int
    states: dict[str, int]
    stats: dict[str, int]
    workers: tuple[str, ...]
    leader: str


OTHER_CONTENT = -1
"""The script's code in `Accepted.fresh` for a conflict. A value of `Limit` there means a request without
room; for `DAY_BUDGET`, `created_ms` is then the time until the next day."""

_AssignAnswers = tuple[tuple[str, ...], ...]
"""For each assignment `(parameters, correlation id)`, or `(reason for the refusal,)`."""
_Retried = tuple[str, int, int]
"""`(state before, 0 or a code of Limit, ms until the next day)`."""
_Flat = tuple[str | int, ...]
_SUBMIT = Script[tuple[tuple[Accepted, ...], _AssignAnswers]](
    "submit", tuple[tuple[Accepted, ...], _AssignAnswers]
)
_IDEMPOTENCY_CONFLICTS = Script[tuple[str, ...]]("idempotency_conflicts", tuple[str, ...])
_ASSIGN = Script[_AssignAnswers | bool]("assign", _AssignAnswers | bool)
_ASSIGN_GANG = Script[tuple[_AssignAnswers, ...] | bool]("assign_gang", tuple[_AssignAnswers, ...] | bool)
_NOTE = Script[bool]("note", bool)
_FINISH = Script[tuple[FinishResult, ...]]("finish", tuple[FinishResult, ...])
_CANCEL = Script[tuple[CancelResult, ...]]("cancel", tuple[CancelResult, ...])
_RETRY = Script[tuple[_Retried, ...]]("retry", tuple[_Retried, ...])
_FETCH = Script[tuple[int, tuple[_Flat, ...], tuple[_Flat, ...]]](
    "fetch", tuple[int, tuple[_Flat, ...], tuple[_Flat, ...]]
)
_CACHED = Script[tuple[Accepted, ...]]("cached", tuple[Accepted, ...])
_DUE = Script[DueResult]("due", DueResult)
_LINKS = Script[LinksResult]("links", LinksResult)
_DEPENDENCIES = Script[tuple[Dependency, ...]]("dependencies", tuple[Dependency, ...])
_Trimmed = tuple[int, str, str]
_TRIM = Script[_Trimmed]("trim", _Trimmed)
MOST_TRIMMED = 1000
NOTHING, PARAMETERS, RESULTS = 0, 1, 2
"""What `fetch` reads beside the columns that are always small."""
_COUNTS = Script[tuple[int, _Flat, _Flat, tuple[str, ...], tuple[str, str, str]]](
    "counts", tuple[int, _Flat, _Flat, tuple[str, ...], tuple[str, str, str]]
)


class Tasks(TaskLists):
    def __init__(
        self,
        fenced: FencedDatabase,
        *,
        keep_ms: int = DAY_MS,
        breaker: Breaker = Breaker(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(fenced)
        self.keep_ms, self._breaker = keep_ms, breaker
        self._owners_at = self._workers_at = "0"

    async def submit(
        self, tasks: Sequence[NewTask], units: Sequence[Unit] = (), unit_of: Sequence[int] = ()
    ) -> list[Submitted]:
        """Queue new tasks. `unit_of` gives the number of each task's unit, from 1. Without units no limits
        apply."""
        taken, _ = await self._fenced.write(_SUBMIT, DAY_MS, 0, tasks, (), units, unit_of)
        return _submitted(taken)

    async def conflicts(self, tasks: Sequence[NewTask]) -> tuple[str, ...]:
        """Return for each the id of a task with its idempotency key and different content; empty if none
        has."""
        return await self._fenced.read(
            _IDEMPOTENCY_CONFLICTS, [(each.idempotency, each.spec, each.params, each.needs) for each in tasks]
        )

    async def submit_and_assign(
        self,
        tasks: Sequence[NewTask],
        assignments: Sequence[Assignment],
        units: Sequence[Unit] = (),
        unit_of: Sequence[int] = (),
    ) -> tuple[list[Submitted], list[AssignResult]]:
        """Queue new tasks and assign some of them in one write. For the leader's dispatcher, which has
        decided already; the store sends it no news of these tasks, because it knows them."""
        taken, given = await self._fenced.write(_SUBMIT, DAY_MS, 1, tasks, assignments, units, unit_of)
        return _submitted(taken), [_assign_result(*each) for each in given]

    async def assign(self, assignments: Sequence[Assignment]) -> list[AssignResult] | None:
        """Assign queued tasks to workers. Return None if this process does not lead."""
        given = await self._fenced.write(_ASSIGN, assignments)
        return None if isinstance(given, bool) else [_assign_result(*each) for each in given]

    async def assign_gangs(self, gangs: Sequence[Sequence[Assignment]]) -> list[list[AssignResult]] | None:
        """Assign all members of each gang, or none of it. Return None if this process does not lead."""
        given = await self._fenced.write(_ASSIGN_GANG, gangs)
        if isinstance(given, bool):
            return None
        return [[_assign_result(*each) for each in answers] for answers in given]

    async def note(self, notes: Sequence[Note]) -> None:
        await self._fenced.read(_NOTE, notes)

    async def finish(self, outcomes: Sequence[Outcome]) -> tuple[FinishResult, ...]:
        return await self._fenced.write(_FINISH, self.keep_ms, outcomes, self._breaker)

    async def cancel(self, ids: Sequence[str], *, owner: str = "") -> tuple[CancelResult, ...]:
        """Cancel tasks of this owner, or of any owner without one."""
        return await self._fenced.write(_CANCEL, self.keep_ms, owner, ids)

    async def retry(
        self, ids: Sequence[str], *, owner: str = "", may: Unit = ANY_NUMBER
    ) -> list[Retried | NoRoom]:
        """Queue ended tasks again, as far as the limits in `may` allow."""
        return [_retried(*each) for each in await self._fenced.write(_RETRY, owner, ids, may)]

    async def fetch(
        self, ids: Sequence[str], *, parameters: bool = False, results: bool = False, most_bytes: int = 0
    ) -> list[Row | None]:
        """Return the stored rows, with `params` or `result` only if asked for; None for a missing task. Reads
        in several calls if the rows are large. With `most_bytes`, stop after about as many."""
        wanted = PARAMETERS if parameters else RESULTS if results else NOTHING
        found: list[Row | None] = []
        size = 0
        while len(found) < len(ids) and (not most_bytes or size < most_bytes):
            _, rows, _ = await self._fenced.read(_FETCH, ids[len(found) :], (), wanted)
            found.extend(row_of(row) for row in rows)
            size += sum(len(str(part)) for row in rows for part in row) if most_bytes else 0
        return found

    async def cached(self, keys: Sequence[str]) -> tuple[Accepted, ...]:
        """Return the completed task of each key of the result cache; one without an id if there is none."""
        return await self._fenced.read(_CACHED, keys)

    async def due(self, most: int = 500) -> DueResult:
        """Queue scheduled tasks whose time has come and end waiting ones that expired, at most `most` of
        each. Only the leader may."""
        return await self._fenced.write(_DUE, self.keep_ms, most)

    async def see_to_links(self, most: int = 200) -> LinksResult:
        """Tell tasks that wait for others which of those have ended, in about `most` steps. Only the leader
        may."""
        return await self._fenced.write(_LINKS, self.keep_ms, most)

    async def dependencies(self, ids: Sequence[str]) -> tuple[Dependency, ...]:
        return await self._fenced.read(_DEPENDENCIES, ids)

    async def trim(self, most_per_worker: int = 1000) -> int:
        """Take expired tasks off the lists, a part at a time; return how many entries were deleted."""
        gone, self._owners_at, self._workers_at = await self._fenced.read(
            _TRIM, self.keep_ms, most_per_worker, MOST_TRIMMED, self._owners_at, self._workers_at
        )
        return gone

    async def counts(self) -> Counts:
        now, states, stats, workers, leader = await self._fenced.read(_COUNTS)
        return Counts(now, _numbers(states), _numbers(stats), workers, leader[0])


def _submitted(answers: Sequence[Accepted]) -> list[Submitted]:
    return [each if each.fresh >= 0 else _refused(each) for each in answers]


def _refused(answer: Accepted) -> KeyConflict | NoRoom:
    if answer.fresh == OTHER_CONTENT:
        return KeyConflict(answer.id)
    return _no_room(answer.fresh, answer.created_ms)


def _retried(state: str, code: int, day_left_ms: int) -> Retried | NoRoom:
    return _no_room(code, day_left_ms) if code else Retried(state)


def _no_room(code: int, day_left_ms: int) -> NoRoom:
    limit = Limit(code)
    return NoRoom(limit, day_left_ms if limit is Limit.DAY_BUDGET else 0)


def _assign_result(first: str, correlation: str | None = None) -> AssignResult:
    """Decode one answer; a refusal has only a reason and no correlation id."""
    return NotAssigned(Moved(first)) if correlation is None else Assigned(first, correlation)


def row_of(flat: _Flat) -> Row | None:
    if not flat:
        return None
    words = map(str, flat)
    return dict(zip(words, words, strict=True))


def _numbers(flat: _Flat) -> dict[str, int]:
    return {str(flat[at]): int(flat[at + 1]) for at in range(0, len(flat), 2)}
