"""The model that a runner holds: an object of the operator's class, which loads once and then runs tasks.

The class has `load(model)` and `run(task)`. The runner makes one object of it, calls `load` before its first
task, and `run` for each. The memory is freed because the process ends, whatever a library does with it.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any, Protocol

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.apps.worker.frames import Health, Load
from gpu_orchestrator.apps.worker.task import LoadFailed, Model, Sink, Task


class Handler(Protocol):
    def load(self, model: Model) -> None: ...

    def run(self, task: Task) -> Any: ...


@dataclass(frozen=True, slots=True)
class HeldModel:
    handler: Handler
    load_s: float

    @property
    def ends_within_s(self) -> float:
        """Return how long the end of its server may take; 0 if it has none."""
        return float(getattr(self.handler, "ends_within_s", 0.0))

    def close(self, *, drains: bool) -> None:
        if self.ends_within_s:
            self.handler.close(drains=drains)  # type: ignore[attr-defined]


def processes(model: HeldModel | None) -> frozenset[int]:
    """Return the processes that a handler says it keeps, with all that they started. It has a method
    `processes` if it may start some after its load."""
    told: Callable[[], Iterable[int]] | None = getattr(model.handler, "processes", None) if model else None
    roots = list(told()) if told else []
    return frozenset(each for root in roots for each in (root, *keeper.descendants(root)))


def load(frame: Load, target: str, output: Sink, tell: Callable[[Health], None]) -> HeldModel:
    """Make the object and let it load; raise what its class raises."""
    if frame.path and not os.path.exists(frame.path):
        raise LoadFailed(f"model {frame.model!r}: there is nothing at {frame.path} on this worker")
    began = monotonic()
    module, _, name = target.partition(":")
    handler: Handler = getattr(import_module(module), name)()
    key = (frame.task, frame.attempt)
    handler.load(Model(frame.model, frame.path, frame.memory_mib, bytes(frame.options), key, output, tell))
    return HeldModel(handler, monotonic() - began)
