"""One attempt at one task on this worker, from `Assign` to its outcome."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu_orchestrator.api import session

LINES_PER_S = 50
LONGEST_LINE = 4096

Key: TypeAlias = tuple[str, int]


@dataclass(slots=True, eq=False)
class Attempt:
    """`started_at` by the loop's clock once its handler runs. `timed_out` and `is_cancelled` say why its
    runner is being ended, if it is."""

    assign: session.Assign
    started_at: float | None = None
    is_cancelled: bool = False
    timed_out: bool = False
    grace_s: float = 0.0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _second: int = 0
    _lines: int = 0

    @property
    def key(self) -> Key:
        return self.assign.task, self.assign.attempt

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.assign.devices)

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def progress(self, line: str, now: float) -> session.Progress | None:
        """The line as it is told, or None: a task that prints without end must not drown the server."""
        if int(now) != self._second:
            self._second, self._lines = int(now), 0
        self._lines += 1
        if self._lines > LINES_PER_S:
            return None
        if self._lines == LINES_PER_S:
            line = f"{line[:LONGEST_LINE]} (more lines this second are left out)"
        return session.Progress(*self.key, line[:LONGEST_LINE])
