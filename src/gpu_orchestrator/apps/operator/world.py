"""What is free and who waits for it: the engine, fed from the watches, asked by workloads.

What a Job takes counts from the moment its place is decided: first as the engine's own assumption, then as
the Job that the API server has, and once its pod is bound as that pod, always under the Job's name. So
nothing is forgotten between a decision and its pod, and after a restart the Jobs themselves say it all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from gpu_orchestrator.api import claims, names, translate
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator.facts import Given
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.node import Node as CoreNode
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request, pairs
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    NodeRemoved,
    NodeUpdated,
    Place,
    PlaceFailed,
    PlacementObserved,
    Refuse,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.policies.registry import Registry

CLAIMED = "have pods with claimed devices, of which a device plugin knows nothing"

log = structlog.get_logger()


@dataclass(slots=True)
class Wish:
    """What a workload asked for, and what it was given and has not yet made a Job of."""

    request: Request
    given: Placement | None = None


class World:
    """`found` is called with a workload's key when a place was found for it while it waited."""

    def __init__(
        self, registry: Registry, rng: Rng, *, clock: Callable[[], float], found: Callable[[str], None]
    ) -> None:
        self.engine = Engine(registry.policy_of, rng)
        self._registry, self._clock, self._found = registry, clock, found
        self._resources: dict[str, str] = {}
        self._claimed: dict[str, set[str]] = {}
        self._wishes: dict[str, Wish] = {}
        self._asker: dict[str, str] = {}
        self._bound: dict[str, tuple[str, Placement]] = {}
        self._jobs: dict[str, Job] = {}

    def ask(self, asker: str, wishes: Sequence[Request], since: float) -> Given | Refusal:
        """A place for the first wish that fits now; else the last one goes on waiting."""
        mine = self._wishes.get(asker)
        if mine and mine.given:
            if mine.request in wishes and self._is_open(mine.given.node):
                return self._given(mine.given)
            self.withdraw(asker)  # it wants something else by now, or its node was closed under the decision
            mine = None
        chosen = next((each for each in wishes[:-1] if self._fits(each)), wishes[-1])
        if mine is None or mine.request != chosen:
            self.withdraw(asker)
            self._registry.policy_of(chosen)  # raises before anything is remembered
            mine = self._wishes[asker] = Wish(chosen)
            self._asker[chosen.key] = asker
            self._hear(RequestAdded(chosen, since), told=asker)
        else:
            self._hear(Tick(), told=asker)  # it may rest after its policy broke, and nothing else wakes it
        if mine.given:
            return self._given(mine.given)
        return self.engine.why(chosen.key) or self._unanswered()

    def _unanswered(self) -> Refusal:
        """The engine still holds something under this key, or the policy itself failed."""
        nodes = len(self.engine.cluster)
        return Refusal(nodes, (("were not asked: its former place is still held", nodes),))

    def withdraw(self, asker: str) -> None:
        """The workload wants no place any more, or could not use the one it got."""
        mine = self._wishes.pop(asker, None)
        if mine is None:
            return
        self._asker.pop(mine.request.key, None)
        if mine.given:
            self._hear(PlaceFailed(mine.request.key))
        self._count_job(mine.request.key)

    def see_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._resources.pop(old.metadata.name, None)
                self._hear(NodeRemoved(old.metadata.name))
            return
        try:
            seen = translate.counted_node(new)
        except BadQuantity as error:
            log.error("node cannot be counted", node=new.metadata.name, error=str(error))
            return
        self._resources[seen.name] = translate.gpu_resource(new)
        self._hear(NodeUpdated(self._as_barred(seen)))

    def _as_barred(self, node: CoreNode) -> CoreNode:
        return replace(node, barred=CLAIMED if self._claimed.get(node.name) else "")

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        uid, name = pod.metadata.uid, our_job(pod)
        placement = self._held_by(new) if new else None
        self._bar(pod, is_there=placement is not None)
        if not name or self._bound.get(name, (uid, None))[0] != uid:
            self._hear(PlacementObserved(placement) if placement else RequestRemoved(uid))
            return
        if placement:
            self._bound[name] = (uid, placement)
        else:
            self._bound.pop(name, None)
        self._count_job(name)

    def _bar(self, pod: Pod, *, is_there: bool) -> None:
        """A device plugin knows nothing of claims: it could give a claimed device away once more. So a node
        with claimed pods takes none of our plain ones."""
        name = pod.spec.node_name
        if not claims.given(pod):
            return
        claimed = self._claimed.setdefault(name, set())
        was_barred = bool(claimed)
        claimed.add(pod.metadata.uid) if is_there else claimed.discard(pod.metadata.uid)
        if bool(claimed) != was_barred and name in self.engine.cluster:
            self._hear(NodeUpdated(self._as_barred(self.engine.cluster.node(name))))
        if not claimed:
            del self._claimed[name]

    def see_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        name = key(job)
        if new is None or new.is_finished:
            self._jobs.pop(name, None)
        else:
            self._jobs[name] = new
            self._keep(name)
        self._count_job(name)

    def _keep(self, name: str) -> None:
        """The Job is there, so what was given for it is used."""
        asker = self._asker.pop(name, None)
        if asker is not None:
            self._wishes.pop(asker, None)

    def _count_job(self, name: str) -> None:
        """What a Job takes is what its bound pod takes or, before and after, what its template asks for, all
        under one key: a Job and its pod counted side by side would seem to oversell a node that is nearly
        full, and whose devices are then whose could not be told apart again."""
        job = self._jobs.get(name)
        if name in self._bound:
            self._hear(PlacementObserved(replace(self._bound[name][1], key=name)))
        elif job is not None and job.node:
            self._hear(PlacementObserved(_placement(name, job)))
        elif name not in self._asker:
            self._hear(RequestRemoved(name))

    def _held_by(self, pod: Pod) -> Placement | None:
        try:
            return translate.counted_placement(pod)
        except BadQuantity as error:
            log.error("pod cannot be counted", pod=key(pod), error=str(error))
            return None

    def _fits(self, request: Request) -> bool:
        try:
            policy = self._registry.policy_of(request)
            return why_not(request.shape, self.engine.cluster, policy) is None
        except Exception:  # a policy need not be ours; the engine says in words what broke, of the last wish
            return False

    def _is_open(self, name: str) -> bool:
        """Whether a node takes new pods, be it full or not."""
        node = self.engine.cluster.node(name) if name in self.engine.cluster else None
        return node is not None and node.ready and node.schedulable and not node.barred

    def _given(self, placement: Placement) -> Given:
        return Given(placement.node, self._resources.get(placement.node, ""))

    def _hear(self, event: Event, *, told: str = "") -> None:
        """`told`: who asks just now and needs no call."""
        for action in self.engine.handle(event, self._clock()):
            match action:
                case Place(request, placement):
                    asker = self._asker[request.key]
                    self._wishes[asker].given = placement
                    if asker != told:
                        self._found(asker)
                case Refuse():
                    pass  # whoever asked learns it by `why`; who waits, waits on


def job_key(pod: Pod) -> str:
    """The Job that a pod belongs to; empty if to none."""
    owner = next((each for each in pod.metadata.owner_references if each.kind == "Job"), None)
    return f"{pod.metadata.namespace}/{owner.name}" if owner else ""


def our_job(pod: Pod) -> str:
    """The same, if that is one of ours."""
    is_ours = pod.metadata.labels.get(names.CONTROLLER) == names.CONTROLLER_NAME
    return job_key(pod) if is_ours else ""


def _placement(name: str, job: Job) -> Placement:
    spec = job.spec.template.spec
    return Placement(
        name,
        job.node,
        unnamed=translate.gpus_asked(spec),
        resources=pairs(translate.asked(spec)),
        host_ports=translate.host_ports(spec),
    )
