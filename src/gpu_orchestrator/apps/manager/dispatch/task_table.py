"""The leader's table of tasks that are not final."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death
from gpu_orchestrator.engine.scheduling_queue import State


@dataclass(slots=True)
class TrackedTask:
    """A task that is not final. `attempt` counts the runs so far."""

    spec: TaskSpec
    attempt: int
    created_s: float
    deaths: tuple[Death, ...] = ()


TaskTable = dict[str, TrackedTask]


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Waiting tasks by priority, and waiting and running tasks by owner."""

    waiting: Counter[int] = field(default_factory=Counter)
    waiting_of: Counter[str] = field(default_factory=Counter)
    running_of: Counter[str] = field(default_factory=Counter)


def depth_of(tasks: Mapping[str, TrackedTask], state_of: Callable[[str], State | None]) -> QueueDepth:
    found = QueueDepth()
    for name, known in tasks.items():
        spec = known.spec
        waits = state_of(name) not in ("held", "in flight")
        found.waiting_of[spec.tenant] += waits
        found.running_of[spec.tenant] += not waits
        if waits:
            found.waiting[spec.priority] += 1
    return found
