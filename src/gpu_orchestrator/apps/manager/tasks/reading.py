"""Tasks as callers ask for them: by the start of an id, as rows or bodies, now or once they have ended."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task_gangs import member_id, split
from gpu_orchestrator.api.units import show_seconds
from gpu_orchestrator.apps.manager import task_schema, views
from gpu_orchestrator.apps.manager.errors import Conflict, NotFound
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters, within
from gpu_orchestrator.apps.manager.tasks.waiting import Waiting

RECHECK_S = 2.0
"""A waiting request reads the task from the store this often, in case the message about its end is lost."""

ID_LENGTH, SHORTEST_START, MOST_CANDIDATES = 32, 4, 10
"""Characters of a task's id; how few of them may stand for it; how many tasks an ambiguous start names."""
_START = re.compile(r"[0-9A-Za-z_-]+")


@dataclass(frozen=True, slots=True)
class TaskReader:
    """`kept_s` says how long ended tasks are kept, and `forgetting` why it is less just now. `runs_here`
    returns True if this process leads and will see the task end without reading the store."""

    store: Store
    waiting: Waiting
    waiters: CompletionWaiters
    kept_s: float
    forgetting: Callable[[], str]
    runs_here: Callable[[str], bool]

    async def full_id(self, start: str, owner: str = "") -> str:
        """Return the id of the one task of this owner, or of any if none is given, that begins like this."""
        if len(start) >= ID_LENGTH or (await self.store.tasks.fetch([start]))[0]:
            return start
        if (await self.store.tasks.fetch([first := member_id(start, 0)]))[0]:
            return first  # a gang stands for its first member: what becomes of one becomes of all
        found: list[str] = []
        if len(start) >= SHORTEST_START and _START.fullmatch(start):
            found = await self.store.tasks.find(start, owner=owner, most=MOST_CANDIDATES + 1)
        if len({split(each)[0] for each in found}) == 1:
            return min(found, key=lambda each: split(each)[1])
        if len(found) > 1:
            shown = sorted(found)[:MOST_CANDIDATES]
            more = " and more" if len(found) > MOST_CANDIDATES else ""
            raise Conflict(
                f"{len(shown)} tasks{more} begin with {start}; give more characters of the id", task_ids=shown
            )
        return found[0] if found else start  # of an unknown task, the caller says so

    async def statuses(self, rows: Mapping[str, Row]) -> list[task_schema.TaskStatus]:
        """Return tasks as the API shows them, with reason and position of those that wait."""
        waits = await self.waiting.of(rows)
        return [views.task_status(name, row, waits.get(name, views.NO_WAIT)) for name, row in rows.items()]

    async def row(self, name: str, owner: str = "") -> Row:
        """Return the row of a task of this owner, or of any owner if none is given.

        A task of another owner is reported as missing, so that its existence does not leak.
        """
        (row,) = await self.store.tasks.fetch([name], results=True)
        if row is None or (owner and row.get("tenant") != owner):
            raise self.no_task(name)
        return row

    def no_task(self, name: str) -> NotFound:
        kept = show_seconds(self.kept_s)
        why = f", and less just now: {forgetting}" if (forgetting := self.forgetting()) else ""
        return NotFound(f"there is no task {name}; ended tasks are kept for {kept}{why}")

    async def wait(self, name: str, timeout_s: float) -> Row:
        """Return the task's row once the task has ended, or its current row after `timeout_s`."""
        deadline = monotonic() + timeout_s
        while True:
            ended = self.waiters.join(name)
            try:
                if not self.runs_here(name) and (row := await self._durable_row(name))["state"] in task.FINAL:
                    return row
                left_s = deadline - monotonic()
                if left_s > 0 and (final := await within(ended, min(left_s, RECHECK_S))):
                    return final
            finally:
                self.waiters.leave(name, ended)
            if left_s <= 0:
                return await self.row(name)

    async def _durable_row(self, name: str) -> Row:
        """Return the row of a task. With DURABILITY=strict, an end is shown once a failover cannot undo
        it."""
        history = await self.store.database.begin()
        row = await self.row(name)
        if row["state"] in task.FINAL:
            await self.store.database.durable(history, int(row.get("finished", 0)))
        return row

    async def durable_rows(self, names: Sequence[str]) -> list[Row | None]:
        """Return the rows of many tasks, results only of those that have ended; None for a missing task."""
        history = await self.store.database.begin()
        rows = await self.store.tasks.fetch(names)
        ended = [at for at, row in enumerate(rows) if row and row["state"] in task.FINAL]
        whole = await self.store.tasks.fetch([names[at] for at in ended], results=True)
        for at, row in zip(ended, whole, strict=True):
            rows[at] = row
        if latest := max((int(row.get("finished", 0)) for row in whole if row), default=0):
            await self.store.database.durable(history, latest)
        return rows
