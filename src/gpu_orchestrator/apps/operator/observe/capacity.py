"""What is free and who waits for it: an engine that the watches feed and that passes reserve places from.

A Job's capacity counts from the moment its place is decided: first as the engine's own assumption, then as
the Job, and once its pod is bound as that pod, always under the Job's key. So nothing is lost between
decision and pod, and after a restart the Jobs alone restore it. Made and asked by the controller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import structlog

from gpu_orchestrator.api import names, nodedevices, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.observe.claimed_nodes import CLAIMED, ClaimedNodes
from gpu_orchestrator.apps.operator.observe.owned_jobs import OwnedJobs
from gpu_orchestrator.apps.operator.planning.snapshot import Given
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.decide import rank, why_not
from gpu_orchestrator.core.node import Node as CoreNode
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request
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

log = structlog.get_logger()


@dataclass(slots=True)
class Wish:
    """What a workload asks for, and the place that is reserved for it until its Job exists."""

    request: Request
    given: Placement | None = None


class Capacity:
    """`found` receives a workload's key when a place is found for it while it waits."""

    def __init__(
        self, registry: Registry, rng: Rng, *, clock: Callable[[], float], found: Callable[[str], None]
    ) -> None:
        self.engine = Engine(registry.policy_of, rng)
        self._registry, self._clock, self._found = registry, clock, found
        self._resources: dict[str, str] = {}
        self._claimed = ClaimedNodes()
        self._wishes: dict[str, Wish] = {}
        self._asker: dict[str, str] = {}
        self._bound: dict[str, tuple[str, Placement]] = {}
        self._jobs = OwnedJobs()

    def reserve(self, asker: str, since: float) -> "Reservation":
        """Open the reservation of one pass over a workload. `since` is the time its place in the queue counts
        from."""
        return Reservation(self, asker, since)

    def ask(self, asker: str, wishes: Sequence[Request], since: float, most: int = 1) -> Given | Refusal:
        """Reserve a place for the first wish that fits now. If none does, the last one waits in the queue.
        Of up to `most` nodes in all, the others are named and not reserved. Raises `UnknownPolicy` for a
        strategy that the caller has not checked."""
        mine = self._wishes.get(asker)
        if mine and mine.given:
            if mine.request in wishes and self._is_open(mine.given.node):
                return self._given(mine.request, mine.given, most)
            self.withdraw(asker)  # its wish changed, or its node was closed meanwhile
            mine = None
        chosen = next((each for each in wishes[:-1] if self._fits(each)), wishes[-1])
        if mine is None or mine.request != chosen:
            self.withdraw(asker)
            self._registry.policy_of(chosen)  # raises before anything is stored
            mine = self._wishes[asker] = Wish(chosen)
            self._asker[chosen.key] = asker
            self._feed(RequestAdded(chosen, since), asking=asker)
        else:
            # It may back off after its policy raised, and no timer is set for that here.
            self._feed(Tick(), asking=asker)
        if mine.given:
            return self._given(mine.request, mine.given, most)
        return self.engine.why(chosen.key) or self._unanswered()

    def _unanswered(self) -> Refusal:
        """Refuse with one reason: the engine still holds something under this key, or the policy raised."""
        nodes = len(self.engine.cluster)
        return Refusal(nodes, (("were not asked: its former place is still held", nodes),))

    def withdraw(self, asker: str) -> None:
        """Drop the workload's wish, and free the place that was reserved for it."""
        mine = self._wishes.pop(asker, None)
        if mine is None:
            return
        self._asker.pop(mine.request.key, None)
        if mine.given:
            self._feed(PlaceFailed(mine.request.key))
        self._count_job(mine.request.key)

    def see_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._resources.pop(old.metadata.name, None)
                self._feed(NodeRemoved(old.metadata.name))
            return
        seen = translate.counted_node(new)
        if seen.barred and seen.barred != self._barred(seen.name):
            log.error("node is not used", node=seen.name, why=seen.barred)
        if unknown := nodedevices.unknown_mode(old, new):
            log.warning("mode of node ignored", node=seen.name, found=unknown, why=nodedevices.UNKNOWN_MODE)
        if nodedevices.mode(new) == names.CLAIMS_MODE and not seen.barred:
            seen = replace(seen, barred=nodedevices.KEPT_FOR_CLAIMS)
        self._resources[seen.name] = translate.gpu_resource(new)
        self._feed(NodeUpdated(self._as_barred(seen)))

    def _barred(self, name: str) -> str:
        return self.engine.cluster.node(name).barred if name in self.engine.cluster else ""

    def _as_barred(self, node: CoreNode) -> CoreNode:
        own = "" if node.barred == CLAIMED else node.barred
        return replace(node, barred=own or (CLAIMED if node.name in self._claimed else ""))

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        uid, name = pod.metadata.uid, jobs.our_job(pod)
        placement = self._held_by(new) if new else None
        self._bar(pod, placement)
        if not name or self._bound.get(name, (uid, None))[0] != uid:
            self._feed(PlacementObserved(placement) if placement else RequestRemoved(uid))
            return
        if placement:
            self._bound[name] = (uid, placement)
        else:
            self._bound.pop(name, None)
        self._count_job(name)

    def _bar(self, pod: Pod, placement: Placement | None) -> None:
        """Bar a node from plain workloads while it has claimed pods."""
        name = pod.spec.node_name
        if self._claimed.see(pod, placement) and name in self.engine.cluster:
            self._feed(NodeUpdated(self._as_barred(self.engine.cluster.node(name))))

    def see_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        name = key(job)
        self._jobs.see(name, new)
        if new is not None and not new.is_finished and self._jobs.is_owned(new):
            self._use(name, new)
        self._count_job(name)

    def see_workload(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        for name in self._jobs.see_workload(old, new):
            self._count_job(name)

    def _use(self, name: str, job: Job) -> None:
        """The Job exists, so its reservation is used up, or not needed if the Job was suspended at once."""
        asker = self._asker.get(name)
        if asker is None:
            return
        if not self._jobs.holds(job):
            self.withdraw(asker)
            return
        del self._asker[name]
        self._wishes.pop(asker, None)

    def _count_job(self, name: str) -> None:
        """Count what the bound pod takes or, before and after it, what the Job's template requests, under one
        key. Counted separately, a Job and its pod would seem to oversell a node that is nearly full, and its
        devices could not be attributed again. A Job with several nodes counts on the first of them until its
        pod is bound."""
        if name in self._bound:
            self._feed(PlacementObserved(replace(self._bound[name][1], key=name)))
        elif job := self._jobs.holding(name):
            self._feed(PlacementObserved(translate.placement(name, job.nodes[0], job.spec.template.spec)))
        elif name not in self._asker:
            self._feed(RequestRemoved(name))

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
        except Exception:  # a plugin policy may raise; the engine reports that for the last wish
            return False

    def _is_open(self, name: str) -> bool:
        """Return True if a node accepts new pods, whether or not it has room."""
        node = self.engine.cluster.node(name) if name in self.engine.cluster else None
        return node is not None and node.ready and node.schedulable and not node.barred

    def _given(self, request: Request, placement: Placement, most: int) -> Given:
        resource = self._resources.get(placement.node, "")
        if most == 1:
            return Given(placement.node, resource)
        ranked = rank(request.shape, self.engine.cluster, self._registry.policy_of(request))
        same = [name for name in ranked if name != placement.node and self._resources.get(name) == resource]
        return Given(placement.node, resource, tuple(same[: most - 1]))

    def _feed(self, event: Event, *, asking: str = "") -> None:
        """Feed the engine and store the places it gives. `asking` is not called back: it reads the answer."""
        for action in self.engine.handle(event, self._clock()):
            match action:
                case Place(request, placement):
                    asker = self._asker[request.key]
                    self._wishes[asker].given = placement
                    if asker != asking:
                        self._found(asker)
                case Refuse():
                    pass  # `ask` reads the reason by `why`; a waiting wish stays in the queue


@dataclass(slots=True)
class Reservation:
    """The capacity that one pass reserves for a workload, or waits for. Withdrawn when the block ends, by an
    exception or a cancellation too, unless the pass calls `keep`.

        with capacity.reserve(name, since) as reservation:
            plan = reconcile(snapshot, now, reservation.ask, rng)
            ...
            reservation.keep()
    """

    capacity: Capacity
    asker: str
    since: float
    is_used: bool = False
    is_kept: bool = False

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_kept:
            self.capacity.withdraw(self.asker)

    def ask(self, wishes: Sequence[Request], most: int = 1) -> Given | Refusal:
        """Reserve a place for the first wish that fits; see `Capacity.ask`."""
        self.is_used = True
        return self.capacity.ask(self.asker, wishes, self.since, most)

    def drop_unused(self) -> None:
        """Withdraw what an earlier pass reserved or waits for, if this pass did not ask for it again."""
        if not self.is_used:
            self.capacity.withdraw(self.asker)

    def keep(self) -> None:
        """Leave the place reserved, or the wish waiting, when the block ends."""
        self.is_kept = True
