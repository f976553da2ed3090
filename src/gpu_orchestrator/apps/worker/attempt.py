"""One attempt at one task on this worker. Kept by `attempts`, queued at a runner."""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.transcript import Transcript

NOT_YET = float("-inf")

Key: TypeAlias = tuple[str, int]
Devices: TypeAlias = tuple[str, ...]
"""UUIDs of a set of devices; empty for a task without devices."""


@dataclass(slots=True, eq=False)
class Attempt:
    """State of one attempt. `begun_at` is by the loop's clock. If its runner is being ended, `timed_out` or
    `is_cancelled` is the reason. `grace_s` is the time that each step of a cancellation has."""

    assign: session.Assign
    key: Key = field(init=False)
    devices: Devices = field(init=False)
    owner: str = field(init=False)
    model: session.Model | None = None
    """What its runner loads first; None for a task type that loads nothing."""
    model_key: str = ""
    """The name of the model and all that decides what is loaded: a copy of another definition is another."""
    begun_at: float = NOT_YET
    is_cancelled: bool = False
    timed_out: bool = False
    load_timeout_s: float = 0.0
    """The time that the load had, if that ended it."""
    grace_s: float = 0.0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    transcript: Transcript | None = None
    """What it has printed; None while it has printed nothing."""

    def __post_init__(self) -> None:
        self.key = (self.assign.task, self.assign.attempt)
        self.devices = tuple([device.uuid for device in self.assign.devices])
        self.owner = self.assign.owner
        if self.model is not None:
            parts = (
                self.model.name,
                self.assign.task_type,
                self.model.path,
                bytes(self.model.options).decode(),
            )
            self.model_key = "\n".join(parts)

    @property
    def has_begun(self) -> bool:
        return self.begun_at > NOT_YET

    def as_load(self, path: str) -> frames.Load:
        model, assign = self.model or session.Model(""), self.assign
        return frames.Load(
            task=assign.task,
            attempt=assign.attempt,
            task_type=assign.task_type,
            model=model.name,
            path=path,
            options=model.options,
            memory_mib=assign.memory_mib,
        )

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
            only_load=assign.only_load,
            gang=assign.gang,
        )

    def log_fields(self) -> dict[str, str | int]:
        """Return the fields that name this attempt in the log."""
        assign = self.assign
        return {"task_id": assign.task, "attempt": assign.attempt, "correlation_id": assign.correlation_id}

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
