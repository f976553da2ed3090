"""What there is to do and who does it, in numbers: what `decision` decides from. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from gpu_orchestrator.apps.manager.tasks.service_times import Kind


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of one owner and kind. `running_for_s` is how long the oldest of them runs."""

    owner: str
    kind: Kind
    pool: str
    waiting: int
    running: int = 0
    running_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that is online. `scaled`: the autoscaler started it, and may stop it. `active` are the tasks
    that it has. `draining`: it was told to take no new ones; `cordoned` says that an operator wants it so."""

    name: str
    active: int = 0
    draining: bool = False
    cordoned: bool = False
    scaled: bool = True

    @property
    def takes_tasks(self) -> bool:
        return not self.draining and not self.cordoned


@dataclass(frozen=True, slots=True)
class Load:
    """`work_s` is what the tasks that may start are expected to take, one after the other, with the loads of
    their models."""

    waiting: int = 0
    running: int = 0
    work_s: float = 0.0
    members: tuple[Member, ...] = ()


def load_of(
    tasks: Iterable[Tasks],
    members: Iterable[Member],
    *,
    pool: str,
    may_run: Callable[[str], int | None],
    service_s: Callable[[Kind], float],
    load_s: Callable[[str], float],
    loaded: Collection[str],
) -> Load:
    """Sum up the tasks that workers of this pool could run now. `may_run` returns how many tasks of an owner
    may run at once: those beyond its quota would not start on new workers either."""
    here = [each for each in tasks if each.pool == pool]
    running = Counter[str]()
    for each in here:
        running[each.owner] += each.running
    by_owner = defaultdict[str, list[Tasks]](list)
    for each in here:
        by_owner[each.owner].append(each)
    waiting, work_s, models = 0, 0.0, set[str]()
    for owner, some in by_owner.items():
        total = sum(each.waiting for each in some)
        most = may_run(owner)
        # What is over the quota now follows as soon as others of the owner have ended, so it is work as well;
        # but with nothing of the owner's that may start, there is nothing to start workers for.
        if not total or (most is not None and most <= running[owner]):
            continue
        waiting += total
        work_s += sum(each.waiting * _takes_s(each, service_s) for each in some)
        models |= {each.kind.model for each in some if each.waiting and each.kind.model}
    work_s += sum(load_s(model) for model in models - set(loaded))
    return Load(waiting, sum(running.values()), work_s, tuple(members))


def _takes_s(tasks: Tasks, service_s: Callable[[Kind], float]) -> float:
    """Return what one of these takes: at least as long as one of them runs already. Else a first task of an
    hour would count as short until it has ended."""
    return max(service_s(tasks.kind), tasks.running_for_s)
