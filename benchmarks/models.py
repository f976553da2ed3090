"""Replay a trace of tasks for three models on GPUs with room for one or two of them: `make bench-models`.

The clock is virtual and loading is simulated; who goes where is decided by the engine of the manager, by the
same code as live. Beside it, on the same trace: `fifo`, the oldest task to the first free GPU, whatever is
loaded there, and `warm`, which never loads a model a second time while it is loaded anywhere. A swap is a
load that evicts. The ratios are the worst of all cases: swaps as a part of `fifo`'s, the makespan as a part
of the better one of the two.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from benchmarks.table import show
from gpu_orchestrator.core.copies import Copy, uses_now, victims
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import Request, request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.models import ModelRules
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry

DEVICE_MIB = 24_000
MIXED, HOT = "ABAACABC", "AAABAAAC"
SLOTS = "slots"
CASES = ((1, 1, MIXED, 0.6), (1, 2, MIXED, 0.75), (2, 1, MIXED, 0.6), (2, 1, HOT, 0.7))
"""GPUs, models for which each has room, the pattern, and how busy tasks alone would keep the GPUs."""


@dataclass(frozen=True, slots=True)
class Case:
    """`room`: how many of the models fit on one GPU at once."""

    gpus: int
    room: int
    tasks: int
    service_s: float = 1.0
    load_s: float = 6.0
    max_wait_s: float = 120.0
    pattern: str = MIXED
    load: float = 0.6
    """Service time that arrives, as a part of what the GPUs can do without any loading."""

    @property
    def model_mib(self) -> int:
        return DEVICE_MIB // self.room - 1000


@dataclass(frozen=True, slots=True)
class Task:
    key: str
    model: str
    at: float


def trace(case: Case, seed: int) -> list[Task]:
    """The pattern, stirred: tasks arrive at random times, each for a model drawn from the pattern."""
    chance, at, found = random.Random(seed), 0.0, []
    for number in range(case.tasks):
        at += chance.expovariate(case.gpus * case.load / case.service_s)
        stirred = number >= 2 * len(case.pattern)
        model = chance.choice(case.pattern) if stirred else case.pattern[number % len(case.pattern)]
        found.append(Task(f"{number}", model, at))
    return found


@dataclass(slots=True)
class Gpu:
    """One worker with one GPU, as its agent keeps it: the same eviction as live."""

    case: Case
    copies: dict[str, Copy] = field(default_factory=dict)
    free_at: float = 0.0
    loads: int = 0
    swaps: int = 0

    def run(self, model: str, now: float) -> float:
        """Load the model if need be, and run one task; return when it begins."""
        begins = now
        if model not in self.copies:
            held = sum(each.mib for each in self.copies.values())
            short = self.case.model_mib - (DEVICE_MIB - held)
            gone = victims(list(self.copies.values()), {0: short}, now) or ()
            for each in gone:
                del self.copies[each.model]
            self.swaps += bool(gone)
            self.loads += 1
            begins += self.case.load_s
            self.copies[model] = Copy(model, (0,), self.case.model_mib, self.case.load_s, begins, begins, 0.0)
        known = self.copies[model]
        self.free_at = begins + self.case.service_s
        self.copies[model] = replace(known, used_at=self.free_at, uses=uses_now(known, begins) + 1)
        return begins


@dataclass(frozen=True, slots=True)
class Outcome:
    loads: int
    swaps: int
    makespan_s: float
    max_wait_s: float
    mean_wait_s: float


def outcome(gpus: list[Gpu], waits: dict[str, float]) -> Outcome:
    return Outcome(
        sum(each.loads for each in gpus),
        sum(each.swaps for each in gpus),
        max(each.free_at for each in gpus),
        max(waits.values()),
        sum(waits.values()) / len(waits),
    )


def replay_simple(case: Case, tasks: list[Task], *, warm_only: bool) -> Outcome:
    """FIFO, or always-warm: each free GPU takes the oldest task that it may take."""
    gpus, waits = [Gpu(case) for _ in range(case.gpus)], dict[str, float]()
    queue, times, at, now = list[Task](), [0.0], 0, 0.0
    while at < len(tasks) or queue:
        while at < len(tasks) and tasks[at].at <= now:
            queue.append(tasks[at])
            at += 1
        for task in list(queue):
            free = [each for each in gpus if each.free_at <= now]
            if not free:
                break
            has = [each for each in free if task.model in each.copies]
            if warm_only and not has and any(task.model in each.copies for each in gpus):
                continue
            waits[task.key] = (has or free)[0].run(task.model, now) - task.at
            queue.remove(task)
        times = [each.free_at for each in gpus if each.free_at > now]
        times += [each.at for each in tasks[at : at + 1]]
        now = min(times, default=now)
    return outcome(gpus, waits)


class Ours:
    """The engine of the manager, with a virtual clock."""

    def __init__(self, case: Case) -> None:
        self.case, self.gpus = case, [Gpu(case) for _ in range(case.gpus)]
        rules = ModelRules(max_wait_s=case.max_wait_s)
        self.engine = Engine(
            Registry().policy_of, random.Random(1), order=FairBands(), explains=False, models=rules
        )
        self._times: list[tuple[float, int, events.Event | None]] = []
        self._numbers = count()
        for number in range(case.gpus):
            each = node(str(number), 1, memory_mib=DEVICE_MIB, resources={SLOTS: 1})
            self._at(0.0, events.NodeUpdated(each))

    def replay(self, tasks: list[Task]) -> Outcome:
        waits, known = dict[str, float](), {each.key: each for each in tasks}
        for task in tasks:
            self._at(task.at, events.RequestAdded(self._request(task), task.at))
        while self._times:
            now = self._times[0][0]
            for action in self.engine.handle_all(list(self._due(now)), now):
                if isinstance(action, events.Place):
                    key, gpu = action.request.key, int(action.placement.node)
                    waits[key] = self.gpus[gpu].run(known[key].model, now) - known[key].at
                    self._at(now, events.Placed(key))
                    self._at(self.gpus[gpu].free_at, events.RequestRemoved(key))
                    self._at(self.gpus[gpu].free_at, self._report(gpu))
            if (deadline := self.engine.deadline(now)) is not None and len(waits) < len(known):
                self._at(max(deadline, now), events.Tick())
        return outcome(self.gpus, waits)

    def _report(self, gpu: int) -> events.CopiesObserved:
        return events.CopiesObserved(str(gpu), tuple(self.gpus[gpu].copies.values()))

    def _request(self, task: Task) -> Request:
        mib, slot = self.case.model_mib, {SLOTS: 1}
        return request(task.key, 1, shared=True, memory_mib=mib, resources=slot, model=task.model)

    def _at(self, time: float, event: events.Event) -> None:
        heappush(self._times, (time, next(self._numbers), event))

    def _due(self, now: float) -> Iterator[events.Event]:
        while self._times and self._times[0][0] <= now:
            event = heappop(self._times)[2]
            if event is not None:
                yield event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=400, help="tasks in each trace")
    parser.add_argument("--seeds", type=int, default=5, help="traces for each case")
    options = parser.parse_args()
    rows, swaps, makespans, longest, bound = [], [], [], 0.0, Case(1, 1, 1).max_wait_s
    for gpus, room, pattern, load in CASES:
        case = Case(gpus, room, options.tasks, pattern=pattern, load=load)
        for seed in range(options.seeds):
            tasks = trace(case, seed)
            ours, fifo = Ours(case).replay(tasks), replay_simple(case, tasks, warm_only=False)
            warm = replay_simple(case, tasks, warm_only=True)
            swaps.append(ours.swaps / max(fifo.swaps, 1))
            makespans.append(ours.makespan_s / min(fifo.makespan_s, warm.makespan_s))
            longest = max(longest, ours.max_wait_s)
            for name, each in (("ours", ours), ("fifo", fifo), ("warm", warm)):
                rows.append(
                    (
                        f"{gpus} GPU, room for {room}, {pattern}, trace {seed}: {name}",
                        *(str(each.swaps), f"{each.makespan_s:.0f}", f"{each.max_wait_s:.0f}"),
                        f"{each.mean_wait_s:.1f}",
                    )
                )
    show("Three models", ("case", "swaps", "makespan s", "longest wait s", "mean wait s"), rows)
    figures = {
        "swaps_ratio": round(max(swaps), 3),
        "makespan_ratio": round(max(makespans), 3),
        "max_wait_s": round(longest, 1),
        "max_wait_bound_s": bound,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
