"""Schedules in the store. When a moment has come is decided above, where time zones are known; `fire` queues
the tasks and advances the schedule in one step, so that each moment is fired once."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpu_orchestrator.adapters.store.records import Item, NewTask, Unit
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

Saved = Literal["saved", "known", "other", "full", "all full"]
Change = Literal["pause", "resume", "delete"]
MOST_OF_ALL = 10_000


class ScheduleRow(Item, frozen=True):
    """One schedule; times are in ms, 0 for none. It fires `delay_ms` after its moments. `key` is the id of
    the key that it was added with, `task` is JSON, `state` is active, paused or stopped. `trouble` is why its
    task could not be queued. `params` is not in lists."""

    id: str
    jitter_ms: int
    delay_ms: int
    next_ms: int
    created_ms: int
    last_ms: int
    fired: int
    passed_over: int
    owner: str
    name: str
    key: str
    schedule: str
    zone: str
    missed: str
    overlap: str
    task: str
    state: str
    reason: str
    last_task: str
    trouble: str
    params: str = ""


class NewSchedule(Item, frozen=True):
    """`columns` alternate names and values, as in `ScheduleRow`, but for what the store writes itself."""

    id: str
    owner: str
    replaces: int
    most_of_owner: int
    most_of_all: int
    next_ms: int
    delay_ms: int
    columns: tuple[str, ...]


class Firing(Item, frozen=True):
    """What to do about a schedule that is due. `promised_ms` was its next moment, `following_ms` is the one
    after all that are due, 0 for none. `moments` are those of the tasks, as text."""

    id: str
    promised_ms: int
    following_ms: int
    last_ms: int
    tasks: tuple[NewTask, ...]
    moments: tuple[str, ...]
    unit: Unit
    passed_over: int


class Fired(Item, frozen=True):
    """`moved on`: another leader fired it, or it was changed. `code` is one of `Limit` if there was no
    room."""

    outcome: Literal["fired", "advanced", "overlap", "stopped", "moved on", "no room"]
    tasks: int
    code: int


class SchedulePage(Item, frozen=True):
    now_ms: int
    total: int
    rows: tuple[ScheduleRow, ...]


class DueSchedules(Item, frozen=True):
    now_ms: int
    rows: tuple[ScheduleRow, ...]


_Saved = tuple[Saved, tuple[ScheduleRow, ...]]
_Changed = tuple[str, tuple[ScheduleRow, ...]]
_SAVE = Script[_Saved]("schedule_save", _Saved)
_CHANGE = Script[_Changed]("schedule_change", _Changed)
_READ = Script[SchedulePage]("schedules", SchedulePage)
_DUE = Script[DueSchedules]("schedules_due", DueSchedules)
_FIRE = Script[tuple[Fired, ...]]("schedule_fire", tuple[Fired, ...])


class Schedules:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def save(self, schedule: NewSchedule) -> tuple[Saved, ScheduleRow | None]:
        """Store a schedule. `known`: there is one of this name, which is the same or was replaced."""
        said, rows = await self._fenced.read(_SAVE, *msgspec.structs.astuple(schedule))
        return said, rows[0] if rows else None

    async def change(
        self, name: str, change: Change, *, owner: str, by: str = "", next_ms: int = 0, new_key: str = ""
    ) -> tuple[str, ScheduleRow | None]:
        """Return the state before, empty if the owner has no such schedule, and the row. One that stopped is
        resumed only with a new key."""
        before, rows = await self._fenced.read(_CHANGE, owner, name, change, by, next_ms, new_key)
        return before, rows[0] if rows else None

    async def get(self, name: str) -> ScheduleRow | None:
        found = await self._fenced.read(_READ, [name], "", 0, 0)
        return found.rows[0] if found.rows else None

    async def page(self, owner: str, offset: int, limit: int) -> SchedulePage:
        """List schedules, oldest first, of all owners if none is given."""
        return await self._fenced.read(_READ, (), owner, offset, limit)

    async def due(self, most: int) -> DueSchedules:
        return await self._fenced.read(_DUE, most)

    async def fire(self, firings: Sequence[Firing]) -> tuple[Fired, ...]:
        """Queue tasks and advance their schedules. Only the leader may; others get no answers."""
        return await self._fenced.write(_FIRE, firings)
