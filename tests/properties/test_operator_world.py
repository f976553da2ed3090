"""In whatever order the watches deliver their events, what is free is what no pod or Job holds."""

import random

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator import seek, template
from gpu_orchestrator.apps.operator.facts import Facts, Given
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.world import World
from gpu_orchestrator.policies.registry import Registry
from tests.apps.operator.builders import job, node, pod, workload

NODES = ("a", "b", "c")
GPUS = 8


class Life(RuleBasedStateMachine):
    """Workloads are asked for, made Jobs and pods, and end; pods of others come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Registry(), random.Random(1), clock=lambda: 0.0, found=lambda _: None)
        for name in NODES:
            self.world.see_node(None, node(name, GPUS))
        self.number = 0
        self.given: dict[str, tuple[GPUWorkload, str]] = {}
        self.waiting: dict[str, GPUWorkload] = {}
        self.jobs: dict[str, tuple[GPUWorkload, Job]] = {}
        self.pods: dict[str, Pod] = {}
        self.others: dict[str, tuple[Pod, int]] = {}

    @rule(gpus=some.integers(1, 8), strategy=some.sampled_from(["leastLoaded", "binPack", "random"]))
    def ask(self, gpus: int, strategy: str) -> None:
        self.number += 1
        self._ask(workload(f"w{self.number}", gpuCount=gpus, schedulingStrategy=strategy))

    def _ask(self, asker: GPUWorkload) -> None:
        name = asker.metadata.name
        wishes = seek.wishes(Facts(asker), template.read(asker))
        answer = self.world.ask(f"team/{name}", wishes, float(self.number))
        self.waiting.pop(name, None)
        if isinstance(answer, Given):
            assert self.takes_plain(answer.node)
            self.given[name] = (asker, answer.node)
        else:
            self.waiting[name] = asker

    @precondition(lambda self: self.waiting)
    @rule(pick=some.randoms())
    def look_again(self, pick: random.Random) -> None:
        self._ask(self.waiting[pick.choice(sorted(self.waiting))])

    @precondition(lambda self: self.waiting or self.given)
    @rule(pick=some.randoms())
    def withdraw(self, pick: random.Random) -> None:
        name = pick.choice(sorted({**self.waiting, **self.given}))
        self.waiting.pop(name, None)
        self.given.pop(name, None)
        self.world.withdraw(f"team/{name}")

    @precondition(lambda self: self.given)
    @rule(pick=some.randoms(), pod_first=some.booleans())
    def make_job(self, pick: random.Random, pod_first: bool) -> None:
        name = pick.choice(sorted(self.given))
        asker, where = self.given.pop(name)
        made = job(asker, where)
        self.jobs[name] = (asker, made)
        if pod_first:
            self.bind(name)
        self.world.see_job(None, made)

    @precondition(lambda self: bool(set(self.jobs) - set(self.pods)))
    @rule(pick=some.randoms())
    def bind_pod(self, pick: random.Random) -> None:
        self.bind(pick.choice(sorted(set(self.jobs) - set(self.pods))))

    def bind(self, name: str) -> None:
        asker, made = self.jobs[name]
        bound = pod(made.metadata.name, uid=f"pod-{name}", gpus=asker.spec.gpu_count, node=made.node)
        self.pods[name] = bound
        self.world.see_pod(None, bound)

    @precondition(lambda self: self.jobs)
    @rule(pick=some.randoms(), pod_first=some.booleans())
    def end(self, pick: random.Random, pod_first: bool) -> None:
        name = pick.choice(sorted(self.jobs))
        asker, made = self.jobs.pop(name)
        ended = self.pods.pop(name, None)
        if pod_first:
            self.world.see_pod(ended, None)
        self.world.see_job(made, job(asker, made.node, conditions={"Complete": ""}))
        if not pod_first:
            self.world.see_pod(ended, None)

    @rule(where=some.sampled_from(NODES), gpus=some.integers(0, 8), claimed=some.booleans())
    def other_pod(self, where: str, gpus: int, claimed: bool) -> None:
        if gpus > GPUS - self.held(where):
            return  # a scheduler of others does not oversell either
        self.number += 1
        uid, ids = f"other-{self.number}", ",".join(map(str, range(gpus)))
        made = pod(uid=uid, node=where, given=ids) if claimed else pod(uid=uid, node=where, gpus=gpus)
        self.others[made.metadata.uid] = (made, gpus)
        self.world.see_pod(None, made)

    @precondition(lambda self: self.others)
    @rule(pick=some.randoms())
    def other_pod_ends(self, pick: random.Random) -> None:
        made, _ = self.others.pop(pick.choice(sorted(self.others)))
        self.world.see_pod(made, None)

    def takes_plain(self, where: str) -> bool:
        """Nobody there holds devices that a device plugin knows nothing of."""
        there = [made for made, _ in self.others.values() if made.spec.node_name == where]
        return not any(names.ALLOCATED in made.metadata.annotations for made in there)

    def held(self, where: str) -> int:
        ours = [(asker, made.node) for asker, made in self.jobs.values()]
        placed = [*ours, *self.given.values(), *self._found()]
        mine = sum(asker.spec.gpu_count for asker, place in placed if place == where)
        return mine + sum(gpus for made, gpus in self.others.values() if made.spec.node_name == where)

    def _found(self) -> list[tuple[GPUWorkload, str]]:
        """Those who waited and were found a place, which they do not know yet."""
        wishes = {name: self.world._wishes[f"team/{name}"] for name in self.waiting}
        return [(self.waiting[name], wish.given.node) for name, wish in wishes.items() if wish.given]

    @invariant()
    def free_is_what_nobody_holds(self) -> None:
        for name in NODES:
            assert self.world.engine.cluster.free_gpus(name) == GPUS - self.held(name), name

    @invariant()
    def nobody_waits_for_what_is_free(self) -> None:
        found = {asker.metadata.name for asker, _ in self._found()}
        largest = max((GPUS - self.held(name) for name in NODES if self.takes_plain(name)), default=0)
        for name, asker in self.waiting.items():
            assert name in found or asker.spec.gpu_count > largest


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=40)
