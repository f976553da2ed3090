"""The leader's table of tasks that are not final, with counters of those that wait and those that run."""

from dataclasses import dataclass, field
from typing import TypeVar

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death

Name = TypeVar("Name", int, str)


@dataclass(slots=True)
class TrackedTask:
    """A task that is not final. `attempt` counts the runs so far. `waits`: no worker has it, nor is about to
    get it; only the table changes that."""

    spec: TaskSpec
    attempt: int
    created_s: float
    deaths: tuple[Death, ...] = ()
    waits: bool = True


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Waiting tasks by priority, and waiting and running tasks by owner."""

    waiting: dict[int, int] = field(default_factory=dict)
    waiting_of: dict[str, int] = field(default_factory=dict)
    running_of: dict[str, int] = field(default_factory=dict)

    def add(self, known: TrackedTask, by: int) -> None:
        owner = known.spec.tenant
        if known.waits:
            _add(self.waiting, known.spec.priority, by)
            _add(self.waiting_of, owner, by)
        else:
            _add(self.running_of, owner, by)


def _add(counts: dict[Name, int], name: Name, by: int) -> None:
    """Forget a count that is 0, or owners who have left would stay forever."""
    if count := counts.get(name, 0) + by:
        counts[name] = count
    else:
        counts.pop(name, None)


class TaskTable(dict[str, TrackedTask]):
    """Counts as tasks come, start and go: a scrape must not walk all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = QueueDepth()

    def __setitem__(self, name: str, known: TrackedTask) -> None:
        if name in self:
            self.discard(name)
        super().__setitem__(name, known)
        self.depth.add(known, 1)

    def discard(self, name: str) -> None:
        """Forget a task, if it is here."""
        if (known := self.pop(name, None)) is not None:
            self.depth.add(known, -1)

    def set_waits(self, name: str, waits: bool) -> None:
        """Note that a task was placed, or that it waits again."""
        known = self.get(name)
        if known is not None and known.waits != waits:
            self.depth.add(known, -1)
            known.waits = waits
            self.depth.add(known, 1)
