"""The leader's table of tasks that are not final, with counters of those that wait and those that run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.past_attempts import Death
from gpu_orchestrator.apps.manager.tasks.service_times import Kind


@dataclass(slots=True)
class _Counts:
    """How many tasks of one owner, priority, kind and pool wait and run."""

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
    began_s: float = 0.0
    """When a worker got it, 0 if this leader has not seen that."""
    counts: _Counts = field(init=False, compare=False, repr=False)
    """Where the table counts it."""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Waiting tasks by priority, and waiting and running tasks by owner."""

    waiting: Counter[int] = field(default_factory=Counter)
    waiting_of: Counter[str] = field(default_factory=Counter)
    running_of: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class KindDepth:
    """How many tasks of one owner, kind and pool wait and run, and when the first of those that run began."""

    owner: str
    kind: Kind
    pool: str
    waiting: int
    running: int
    oldest_began_s: float = 0.0

    def running_for_s(self, now: float) -> float:
        """Return how long tasks of this kind run that have not ended, at least."""
        return max(now - self.oldest_began_s, 0.0) if self.oldest_began_s else 0.0


class TaskTable(dict[str, TrackedTask]):
    """Counts as tasks come, start and go: a scrape must not walk all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[_Key, _Counts] = {}
        self._placed: dict[str, TrackedTask] = {}
        """The tasks that this leader placed, oldest first."""

    @property
    def depth(self) -> QueueDepth:
        found = QueueDepth()
        for (owner, priority, *_), counts in self._counts.items():
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
        key = _key(known.spec)
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
        self._placed.pop(name, None)
        counts = known.counts
        if known.waits:
            counts.waiting -= 1
        else:
            counts.running -= 1
        if not counts.waiting and not counts.running:
            del self._counts[_key(known.spec)]

    def kinds(self) -> Iterator[KindDepth]:
        """Yield what waits and runs by kind; one owner and kind may come once for each priority."""
        oldest: dict[Kind, float] = {}
        for each in self._placed.values():
            oldest.setdefault(Kind(each.spec.task_type, each.spec.model), each.began_s)
        for (owner, _, task_type, model, pool), counts in self._counts.items():
            kind = Kind(task_type, model)
            yield KindDepth(owner, kind, pool, counts.waiting, counts.running, oldest.get(kind, 0.0))

    def set_waits(self, name: str, waits: bool, now: float = 0.0) -> None:
        """Note that a task was placed just now, or that it waits again."""
        known = self.get(name)
        if known is not None and known.waits != waits:
            by = 1 if waits else -1
            known.waits, known.began_s = waits, 0.0 if waits else now
            if waits:
                self._placed.pop(name, None)
            elif now:
                self._placed[name] = known
            known.counts.waiting += by
            known.counts.running -= by


_Key = tuple[str, int, str, str, str]


def _key(spec: TaskSpec) -> _Key:
    return spec.tenant, spec.priority, spec.task_type, spec.model, spec.pool
