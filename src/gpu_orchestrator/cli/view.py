"""The live view of `up`: problems, counts and tasks; and the sample tasks of the first start.

Running tasks come first, with their time and devices; then those that wait, with the reason; then the latest
that ended. Ids are never cut: where the terminal is narrow, the details move to a line of their own.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import ANY_NUMBER, NewTask
from gpu_orchestrator.adapters.store.tasks import Counts, Row
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager import views
from gpu_orchestrator.apps.manager.fleet import rows as fleet_rows
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.cli.plain import plain
from gpu_orchestrator.core.answer import Refusal

EVERY_S, QUIET_S, PROBLEMS_S, WORKERS_S = 0.25, 2.0, 0.5, 1.0
ROWS, LEAST_ROWS, AROUND_ROWS = 16, 4, 14
"""At most this many tasks are shown; fewer on a low terminal, so that the key and the hints stay in sight."""
NARROW = 28
"""With fewer columns left for it, the detail of a task goes to a line of its own."""
ACTIVE = ("running", "assigned")
ENDED = tuple(sorted(task.FINAL))
COLOURS = {
    "completed": "green",
    "running": "cyan",
    "assigned": "cyan",
    "queued": "yellow",
    "scheduled": "yellow",
    "failed": "red",
    "dead": "red",
}
SAMPLES: tuple[tuple[TaskSpec, Mapping[str, object]], ...] = (
    (TaskSpec("echo", gpus=0), {"hello": "world"}),
    *((TaskSpec("sleep", memory_mib=4096), {"seconds": 1 + number / 2}) for number in range(6)),
    (TaskSpec("sleep", priority=75), {"seconds": 1}),
)


async def samples(manager: Manager, *, has_gpu: bool = True) -> None:
    """Submit a few tasks to a new store, so that there is something to see: without a GPU, tasks that need
    none."""
    with contextlib.suppress(StoreError):
        counts = await manager.store.tasks.counts()
        if any(counts.states.values()) or any(counts.stats.values()):
            return
        new = [
            NewTask(
                f"sample-{number}",
                task.encode(spec if has_gpu else replace(spec, gpus=0, memory_mib=0)),
                json.dumps(parameters),
                tenant="samples",
            )
            for number, (spec, parameters) in enumerate(SAMPLES, 1)
        ]
        await manager.admission.put(new, ANY_NUMBER)


@dataclass(frozen=True, slots=True)
class Line:
    """One task of the view. `detail` is where it runs, why it waits, or how it failed."""

    name: str
    status: str
    time: str
    task_type: str
    detail: str = ""


class View:
    """`problems` returns what is wrong now, a line each. Without `shows_tasks` only problems are shown."""

    def __init__(
        self,
        manager: Manager,
        console: Console,
        problems: Callable[[], Sequence[str]],
        shows_tasks: bool = True,
    ) -> None:
        self._manager, self._console, self._problems = manager, console, problems
        self._shows_tasks = shows_tasks
        self._told: set[str] = set()
        self._told_problems: tuple[str, ...] = ()

    async def run(self) -> None:
        """Show the view until cancelled; without a terminal, print one line for each task that ended."""
        if not self._console.is_terminal or not self._shows_tasks:
            return await self._run_plain()
        picture, is_active = Group(), True
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while True:
                with contextlib.suppress(StoreError):  # it will be back
                    picture, is_active = await self._picture()
                live.update(Group(*map(_problem, self._problems()), picture), refresh=True)
                await asyncio.sleep(EVERY_S if is_active else QUIET_S)

    async def _run_plain(self) -> None:
        while True:
            self._tell_problems()
            if self._shows_tasks:
                with contextlib.suppress(StoreError):
                    await self._tell_ended()
            await asyncio.sleep(EVERY_S if self._shows_tasks else PROBLEMS_S)

    def _tell_problems(self) -> None:
        """Print each problem when it comes up, however its numbers change, and when all is well again."""
        problems = self._problems()
        kinds = tuple(each.split(":")[0] for each in problems)
        for kind, each in zip(kinds, problems, strict=True):
            if kind not in self._told_problems:
                self._console.print(_problem(each), soft_wrap=True)
        if self._told_problems and not kinds:
            self._console.print(Text("all is well again", style="green"))
        self._told_problems = kinds

    async def _tell_ended(self) -> None:
        page = await self._manager.store.tasks.page(states=ENDED, offset=0, limit=ROWS)
        found = await self._manager.store.tasks.fetch(page.ids)
        for name, row in reversed(list(zip(page.ids, found, strict=True))):
            if row and name not in self._told:
                self._told.add(name)
                status = views.task_status(name, row)
                after = f" after {status.duration}" if status.duration else ""
                why = f": {status.error.message}" if status.error else ""
                where = status.assigned_worker or "no worker"
                said = f"task {name} {status.status} on {where}{after}{why}"
                self._console.print(plain(said), soft_wrap=True)

    async def _picture(self) -> tuple[Group, bool]:
        counts = await self._manager.store.tasks.counts()
        most = max(min(ROWS, self._console.height - AROUND_ROWS), LEAST_ROWS)
        lines = await self._lines(most, counts.now_ms)
        is_active = any(counts.states.get(state) for state in (*ACTIVE, "queued"))
        overview = self._manager.overview
        await overview.refresh(at_most_old_s=WORKERS_S)
        online = sum(each.online for each in overview.workers.values())
        return Group(summary(counts, online), *table(lines, self._console.width, most)), is_active

    async def _lines(self, most: int, now_ms: int) -> list[Line]:
        tasks = self._manager.store.tasks
        pages = [
            await tasks.page(states=states, offset=0, limit=most) for states in (ACTIVE, ("queued",), ENDED)
        ]
        ids = shared([page.ids for page in pages], most)
        found = [(name, row) for name, row in zip(ids, await tasks.fetch(ids), strict=True) if row]
        owners = {row.get("tenant", "") for _, row in found if row["state"] == "queued"}
        held_back = {owner: await self._manager.held_back(owner) for owner in owners}
        return [self._line(name, row, now_ms, held_back) for name, row in found]

    def _line(self, name: str, row: Row, now_ms: int, held_back: Mapping[str, str]) -> Line:
        status = views.task_status(name, row)
        took_s = status.duration_seconds
        if took_s is None and status.status in ACTIVE and row.get("started"):
            took_s = max(now_ms - int(row["started"]), 0) / 1000
        if status.status == "queued":
            detail = held_back.get(row.get("tenant", "")) or self._why_waiting(name, row)
        else:
            detail = _detail(row, status)
        return Line(name, status.status, "" if took_s is None else clock(took_s), status.task_type, detail)

    def _why_waiting(self, name: str, row: Row) -> str:
        dispatcher = self._manager.leader.dispatcher
        refusal = dispatcher.engine.why(name) if dispatcher else None
        return in_short(refusal) if refusal else row.get("reason", "")


def in_short(refusal: Refusal) -> str:
    """Return why no worker fits, without `0/1 workers fit:`, which needs the room that the reason should
    have."""
    return words.why_it_waits(refusal).rpartition(" fit: ")[2]


def shared(groups: Sequence[Sequence[str]], most: int) -> list[str]:
    """Take `most` ids from the groups in order, but leave each later group a share: a long queue must not
    hide what ended last, nor many running tasks the queue."""
    found: list[str] = []
    for number, ids in enumerate(groups):
        later = sum(min(len(each), most // 4) for each in groups[number + 1 :])
        found += ids[: max(most - len(found) - later, 0)]
    return found


def clock(seconds: float) -> str:
    """`0.4s`, `12s`, `3m05s`, `2h07m`: short, and as precise as one looks at it."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{int(seconds)}s"
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes}m{second:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def summary(counts: Counts, online: int) -> Text:
    """Return counts of workers and tasks; those that are offline are said only if there are some."""
    states, known = counts.states, len(counts.workers)
    workers = f"{known} worker{'s' if known != 1 else ''}"
    if online < known:
        workers = f"{online} of {workers} online"
    said = ", ".join(f"{states[name]} {name}" for name in states if states[name]) or "no tasks yet"
    return Text(f"{workers}; {said}", style="bold")


def table(lines: Sequence[Line], width: int, most: int) -> list[Text]:
    """Return the lines of the view, none wider than the terminal but for the ids, which are never cut."""
    if not lines:
        return []
    columns = [("TASK", "name"), ("STATUS", "status"), ("TIME", "time"), ("TYPE", "task_type")]
    cells = {field: [plain(getattr(line, field)).plain for line in lines] for _, field in columns}
    widths = {field: max(len(head), *map(cell_len, cells[field])) for head, field in columns}
    if sum(widths.values()) + 2 * len(columns) + NARROW > width:
        columns = columns[:3]
    used = sum(widths[field] + 2 for _, field in columns)
    is_narrow = used + NARROW > width
    head = Text("".join(f"{head:<{widths[field] + 2}}" for head, field in columns), style="bold")
    shown = [head if is_narrow else head.append("DETAIL")]
    for number, line in enumerate(lines):
        row = Text(no_wrap=True, overflow="ignore")
        for _, field in columns:
            text = cells[field][number]
            style = COLOURS.get(line.status, "") if field == "status" else ""
            row.append(text + " " * (widths[field] + 2 - cell_len(text)), style=style)
        detail = plain(line.detail)
        if not is_narrow:
            detail.truncate(max(width - used, 1), overflow="ellipsis")
            row.append_text(detail)
        row.rstrip()
        shown.append(row)
        if is_narrow and line.detail:
            detail.truncate(max(width - 4, 1), overflow="ellipsis")
            detail.stylize("dim")
            shown.append(Text("    ").append_text(detail))
    return shown[: 1 + most] if is_narrow else shown


def _detail(row: Row, status: Any) -> str:
    if status.error is not None:
        return str(status.error.message)
    worker = status.assigned_worker or ""
    devices = [each.index for each in fleet_rows.read_grant(row["place"]).devices] if row.get("place") else []
    if not devices:
        return f"on {worker}" if worker else str(status.reason)
    return f"GPU {','.join(map(str, devices))} on {worker}"


def _problem(line: str) -> Text:
    return plain(line).copy() if not line else Text(f"! {plain(line).plain}", style="bold red")
