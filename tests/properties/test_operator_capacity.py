"""In whatever order events arrive, free capacity is what no workload, Job or pod holds."""

import random

from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator.jobs import template
from gpu_orchestrator.apps.operator.observe.capacity import Capacity
from gpu_orchestrator.apps.operator.planning import place
from gpu_orchestrator.apps.operator.planning.snapshot import Given, WorkloadSnapshot
from gpu_orchestrator.policies.registry import Registry
from tests.support.operator_builders import job, node, pod, workload

NODES = ("a", "b", "c")
GPUS = 8


class Life(RuleBasedStateMachine):
    """Workloads ask, become Jobs and pods, and end; others suspend, resume and forge Jobs; pods
    of other owners come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(Registry(), random.Random(1), clock=lambda: 0.0, found=lambda _: None)
        for name in NODES:
            self.capacity.see_node(None, node(name, GPUS))
        self.number = 0
        self.given: dict[str, tuple[GPUWorkload, str]] = {}
        self.waiting: dict[str, GPUWorkload] = {}
        self.jobs: dict[str, tuple[GPUWorkload, Job]] = {}
        self.suspended: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self.others: dict[str, tuple[Pod, int]] = {}

    @rule(gpus=some.integers(1, 8), strategy=some.sampled_from(["leastLoaded", "binPack", "random"]))
    def ask(self, gpus: int, strategy: str) -> None:
        self.number += 1
        asker = workload(f"w{self.number}", gpuCount=gpus, schedulingStrategy=strategy)
        self.capacity.see_workload(None, asker)
        self._ask(asker)

    def _ask(self, asker: GPUWorkload) -> None:
        name = asker.metadata.name
        wishes = place.wishes(WorkloadSnapshot(asker), template.read(asker))
        answer = self.capacity.ask(f"team/{name}", wishes, float(self.number))
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
        self.capacity.withdraw(f"team/{name}")

    @precondition(lambda self: self.given)
    @rule(pick=some.randoms(), pod_first=some.booleans())
    def make_job(self, pick: random.Random, pod_first: bool) -> None:
        name = pick.choice(sorted(self.given))
        asker, where = self.given.pop(name)
        made = job(asker, where)
        self.jobs[name] = (asker, made)
        if pod_first:
            self.bind(name)
        self.capacity.see_job(None, made)

    @rule(where=some.sampled_from(NODES), gpus=some.integers(1, 8), owner=some.sampled_from(["", "another"]))
    def forge_job(self, where: str, gpus: int, owner: str) -> None:
        """Someone creates a Job that names no workload, or one that does not exist: it counts for nothing."""
        self.number += 1
        forged = workload(f"forged{self.number}", gpuCount=gpus)
        self.capacity.see_job(None, job(forged, where, owned_by=owner))

    @property
    def podless(self) -> list[str]:
        return sorted(set(self.jobs) - set(self.pods) - self.suspended)

    @precondition(lambda self: self.podless)
    @rule(pick=some.randoms())
    def suspend_job(self, pick: random.Random) -> None:
        name = pick.choice(self.podless)
        asker, made = self.jobs[name]
        self.suspended.add(name)
        self.capacity.see_job(made, job(asker, made.node, suspend=True))

    @precondition(lambda self: self.suspended)
    @rule(pick=some.randoms())
    def resume_job(self, pick: random.Random) -> None:
        name = pick.choice(sorted(self.suspended))
        asker, made = self.jobs[name]
        if asker.spec.gpu_count > GPUS - self.held(made.node):
            return  # oversold: only the kube-scheduler decides who starts
        self.suspended.discard(name)
        self.capacity.see_job(made, made)

    @precondition(lambda self: self.podless)
    @rule(pick=some.randoms())
    def bind_pod(self, pick: random.Random) -> None:
        self.bind(pick.choice(self.podless))

    def bind(self, name: str) -> None:
        asker, made = self.jobs[name]
        bound = pod(made.metadata.name, uid=f"pod-{name}", gpus=asker.spec.gpu_count, node=made.node)
        self.pods[name] = bound
        self.capacity.see_pod(None, bound)

    @precondition(lambda self: self.jobs)
    @rule(pick=some.randoms(), pod_first=some.booleans())
    def end(self, pick: random.Random, pod_first: bool) -> None:
        name = pick.choice(sorted(self.jobs))
        asker, made = self.jobs.pop(name)
        self.suspended.discard(name)
        ended = self.pods.pop(name, None)
        if pod_first:
            self.capacity.see_pod(ended, None)
        self.capacity.see_job(made, job(asker, made.node, conditions={"Complete": ""}))
        if not pod_first:
            self.capacity.see_pod(ended, None)

    @rule(where=some.sampled_from(NODES), gpus=some.integers(0, 8), claimed=some.booleans())
    def other_pod(self, where: str, gpus: int, claimed: bool) -> None:
        if gpus > GPUS - self.held(where):
            return  # other schedulers do not oversell either
        self.number += 1
        uid, ids = f"other-{self.number}", ",".join(map(str, range(gpus)))
        made = pod(uid=uid, node=where, given=ids) if claimed else pod(uid=uid, node=where, gpus=gpus)
        self.others[made.metadata.uid] = (made, gpus)
        self.capacity.see_pod(None, made)

    @precondition(lambda self: self.others)
    @rule(pick=some.randoms())
    def other_pod_ends(self, pick: random.Random) -> None:
        made, _ = self.others.pop(pick.choice(sorted(self.others)))
        self.capacity.see_pod(made, None)

    def takes_plain(self, where: str) -> bool:
        """Return True if no pod on the node holds claimed devices."""
        there = [made for made, _ in self.others.values() if made.spec.node_name == where]
        return not any(names.ALLOCATED in made.metadata.annotations for made in there)

    def held(self, where: str) -> int:
        counted = [self.jobs[name] for name in self.jobs if name not in self.suspended]
        ours = [(asker, made.node) for asker, made in counted]
        placed = [*ours, *self.given.values(), *self._found()]
        mine = sum(asker.spec.gpu_count for asker, place in placed if place == where)
        return mine + sum(gpus for made, gpus in self.others.values() if made.spec.node_name == where)

    def _found(self) -> list[tuple[GPUWorkload, str]]:
        """Return the waiting workloads that got a place and have not asked again yet."""
        wishes = {name: self.capacity._wishes[f"team/{name}"] for name in self.waiting}
        return [(self.waiting[name], wish.given.node) for name, wish in wishes.items() if wish.given]

    @invariant()
    def free_capacity_is_what_is_not_held(self) -> None:
        for name in NODES:
            assert self.capacity.engine.cluster.free_gpus(name) == GPUS - self.held(name), name

    @invariant()
    def no_workload_waits_for_free_capacity(self) -> None:
        found = {asker.metadata.name for asker, _ in self._found()}
        largest = max((GPUS - self.held(name) for name in NODES if self.takes_plain(name)), default=0)
        for name, asker in self.waiting.items():
            assert name in found or asker.spec.gpu_count > largest


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=40)
