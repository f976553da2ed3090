"""The live view of `up`: the latest tasks and the devices, and the sample tasks of the first start."""

import asyncio
import contextlib
import json
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import ANY_NUMBER, NewTask
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager import views
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.cli.plain import plain

EVERY_S = 0.25
QUIET_S = 2.0
LATEST = 12
COLOURS = {"completed": "green", "running": "cyan", "assigned": "cyan", "failed": "red", "dead": "red"}
SAMPLES: tuple[tuple[TaskSpec, Mapping[str, object]], ...] = (
    (TaskSpec("echo", gpus=0), {"hello": "world"}),
    *((TaskSpec("sleep", memory_mib=4096), {"seconds": 1 + number / 2}) for number in range(6)),
    (TaskSpec("sleep", priority=75), {"seconds": 1}),
)


async def samples(manager: Manager) -> None:
    """Submit a few tasks, so that there is something to see."""
    new = [
        NewTask(f"sample-{number}", task.encode(spec), json.dumps(parameters), tenant="samples")
        for number, (spec, parameters) in enumerate(SAMPLES, 1)
    ]
    await manager.admission.put(new, ANY_NUMBER)


class View:
    def __init__(self, manager: Manager, console: Console) -> None:
        self._manager, self._console = manager, console

    async def run(self) -> None:
        """Show the view until cancelled; without a terminal, print one line per task that ended."""
        if not self._console.is_terminal:
            return await self._run_plain()
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while True:
                active = True
                try:
                    table, active = await self._table()
                    live.update(table, refresh=True)
                except StoreError:
                    pass  # it will be back
                await asyncio.sleep(EVERY_S if active else QUIET_S)

    async def _run_plain(self) -> None:
        told: set[str] = set()
        while True:
            with contextlib.suppress(StoreError):  # it will be back
                await self._tell(told)
            await asyncio.sleep(EVERY_S)

    async def _tell(self, told: set[str]) -> None:
        page = await self._manager.store.tasks.page(offset=0, limit=LATEST)
        rows = await self._manager.store.tasks.fetch(page.ids)
        for name, row in zip(page.ids, rows, strict=True):
            if row and row["state"] in task.FINAL and name not in told:
                told.add(name)
                self._console.print(
                    plain(f"task {name} {row['state']} on {row.get('worker') or 'no worker'}")
                )

    async def _table(self) -> tuple[Group, bool]:
        store = self._manager.store
        counts = await store.tasks.counts()
        page = await store.tasks.page(offset=0, limit=LATEST)
        rows = await store.tasks.fetch(page.ids)
        table = Table(box=None, header_style="bold", pad_edge=False)
        for heading in ("TASK", "STATUS", "TYPE", "WORKER", "DURATION"):
            table.add_column(heading)
        for name, row in zip(page.ids, rows, strict=True):
            if row:
                status = views.task_status(name, row)
                colour = COLOURS.get(status.status, "default")
                word = Text(status.status, style=colour)
                worker, duration = status.assigned_worker or "-", status.duration or "-"
                table.add_row(name, word, plain(status.task_type), plain(worker), duration)
        states = counts.states
        line = ", ".join(f"{states[name]} {name}" for name in states if states[name]) or "no tasks yet"
        online = f"{len(counts.workers)} worker{'s' if len(counts.workers) != 1 else ''}"
        active = any(states[name] for name in ("queued", "assigned", "running"))
        return Group(Text(f"{online}; {line}", style="bold"), table), active
