"""The leader's table of tasks that are not final, with counters of those that wait and those that run."""

from collections import Counter
from dataclasses import dataclass, field

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death


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

    waiting: Counter[int] = field(default_factory=Counter)
    waiting_of: Counter[str] = field(default_factory=Counter)
    running_of: Counter[str] = field(default_factory=Counter)


class TaskTable(dict[str, TrackedTask]):
    """Counts as tasks come, start and go: a scrape must not walk all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int, bool], int] = {}

    @property
    def depth(self) -> QueueDepth:
        found = QueueDepth()
        for (owner, priority, waits), count in self._counts.items():
            (found.waiting_of if waits else found.running_of)[owner] += count
            if waits:
                found.waiting[priority] += count
        return found

    def __setitem__(self, name: str, known: TrackedTask) -> None:
        if name in self:
            self.discard(name)
        super().__setitem__(name, known)
        self._count(known, 1)

    def discard(self, name: str) -> None:
        """Forget a task, if it is here."""
        if (known := self.pop(name, None)) is not None:
            self._count(known, -1)

    def set_waits(self, name: str, waits: bool) -> None:
        """Note that a task was placed, or that it waits again."""
        known = self.get(name)
        if known is not None and known.waits != waits:
            self._count(known, -1)
            known.waits = waits
            self._count(known, 1)

    def _count(self, known: TrackedTask, by: int) -> None:
        """Forget a count that is 0, or owners who have left would stay forever."""
        spec = known.spec
        key = spec.tenant, spec.priority, known.waits
        if count := self._counts.get(key, 0) + by:
            self._counts[key] = count
        else:
            del self._counts[key]
