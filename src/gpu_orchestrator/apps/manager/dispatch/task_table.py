"""The leader's table of tasks that are not final, with counters of those that wait and those that run."""

from collections import Counter
from dataclasses import dataclass, field

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death


@dataclass(slots=True)
class _Counts:
    """How many tasks of one owner and priority wait and run."""

    waiting: int = 0
    running: int = 0


@dataclass(slots=True)
class TrackedTask:
    """A task that is not final. `attempt` counts the runs so far. `waits`: no worker has it, nor is about to
    get it; only the table changes that."""

    spec: TaskSpec
    attempt: int
    created_s: float
    deaths: tuple[Death, ...] = ()
    waits: bool = True
    counts: _Counts = field(init=False, compare=False, repr=False)
    """Where the table counts it."""


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
        self._counts: dict[tuple[str, int], _Counts] = {}

    @property
    def depth(self) -> QueueDepth:
        found = QueueDepth()
        for (owner, priority), counts in self._counts.items():
            if counts.waiting:
                found.waiting[priority] += counts.waiting
                found.waiting_of[owner] += counts.waiting
            if counts.running:
                found.running_of[owner] += counts.running
        return found

    def __setitem__(self, name: str, known: TrackedTask) -> None:
        if name in self:
            self.discard(name)
        super().__setitem__(name, known)
        key = known.spec.tenant, known.spec.priority
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = _Counts()
        known.counts = counts
        if known.waits:
            counts.waiting += 1
        else:
            counts.running += 1

    def discard(self, name: str) -> None:
        """Forget a task, if it is here, and its counts if it was the last: owners who have left would stay
        forever."""
        if (known := self.pop(name, None)) is None:
            return
        counts = known.counts
        if known.waits:
            counts.waiting -= 1
        else:
            counts.running -= 1
        if not counts.waiting and not counts.running:
            del self._counts[known.spec.tenant, known.spec.priority]

    def set_waits(self, name: str, waits: bool) -> None:
        """Note that a task was placed, or that it waits again."""
        known = self.get(name)
        if known is not None and known.waits != waits:
            by = 1 if waits else -1
            known.waits = waits
            known.counts.waiting += by
            known.counts.running -= by
