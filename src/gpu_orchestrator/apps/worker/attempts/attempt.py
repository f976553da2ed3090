"""One attempt at one task on this worker."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.runners import frames

LINES_PER_S = 50
LONGEST_LINE = 4096
NOT_YET = float("-inf")

Key: TypeAlias = tuple[str, int]
Devices: TypeAlias = tuple[str, ...]
"""UUIDs of a set of devices; empty for tasks without."""


@dataclass(slots=True, eq=False)
class Attempt:
    """`begun_at` is by the loop's clock. `timed_out` and `is_cancelled` say why its runner is being ended, if
    it is; `grace_s` is how much time each step of a cancellation has."""

    assign: session.Assign
    key: Key = field(init=False)
    devices: Devices = field(init=False)
    begun_at: float = NOT_YET
    is_cancelled: bool = False
    timed_out: bool = False
    grace_s: float = 0.0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _second: int = 0
    _lines: int = 0

    def __post_init__(self) -> None:
        self.key = (self.assign.task, self.assign.attempt)
        self.devices = tuple([device.uuid for device in self.assign.devices])

    @property
    def has_begun(self) -> bool:
        return self.begun_at > NOT_YET

    def as_run(self) -> frames.Run:
        assign = self.assign
        return frames.Run(
            task=assign.task,
            attempt=assign.attempt,
            task_type=assign.task_type,
            parameters=assign.parameters,
            model_name=assign.model_name,
            memory_mib=assign.memory_mib,
            correlation_id=assign.correlation_id,
        )

    def names(self) -> dict[str, str | int]:
        """For the log."""
        assign = self.assign
        return {"task_id": assign.task, "attempt": assign.attempt, "correlation_id": assign.correlation_id}

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
