"""Where everything seen comes together: objects of the API server become events of the engine, and what the
engine wants done becomes jobs. Knows no network; `scheduler` plugs the watches in, `work` performs the jobs.

A pod of ours is in one of these places:
    waiting   asked for, or told why it cannot be      flying   being bound by us
    clearing  leases of an earlier try are taken off   held     bound, whoever bound it
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import structlog

from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api import claims as asks
from gpu_orchestrator.api import names, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, Node, Pod, VolumeClaim
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler import wish
from gpu_orchestrator.apps.scheduler.bind import Bound, Failed, Job
from gpu_orchestrator.apps.scheduler.leasebook import LeaseBook
from gpu_orchestrator.apps.scheduler.nodebook import NodeBook
from gpu_orchestrator.apps.scheduler.serving import Serving
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Asked, Event, Gone, Held
from gpu_orchestrator.policies.registry import UnknownPolicy

Fate = Literal["bound", "flying", "waiting", "unknown"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores:
    """The live copies that the watches keep."""

    pods: Store[Pod]
    nodes: Store[Node]
    claims: Store[GpuClaim]
    reports: Store[GpuNodeStatus]
    leases: Store[Lease]
    volume_claims: Store[VolumeClaim]
    volumes: Store[Volume]

    def volume_claim(self, key: str) -> VolumeClaim | None:
        return self.volume_claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)


@dataclass(frozen=True, slots=True)
class Ended:
    """A pod that lives no longer and had devices; without a placement it had leases and was never bound."""

    pod: Pod
    placement: Placement | None


class Hands(Protocol):
    """What the desk asks others to do; all of it returns at once."""

    def place(self, job: Job) -> None: ...

    def give_up(self, job: Job, why: str) -> None: ...

    def refuse(self, pod: Pod, why: str) -> None: ...

    def ended(self, ended: Ended) -> None: ...

    def clear(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """`clears`: leases of an unbound pod that we do not know of are leftovers and are cleared at once, as the
    only scheduler may; otherwise they may be another's work in progress. `leases`: false where there are
    none, and we have to remember ourselves what an ended pod still holds."""

    scheduler_name: str = names.SCHEDULER
    clears: bool = True
    leases: bool = True


class Desk:
    """`waited_s` tells how long ago a pod was created."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        hands: Hands,
        rules: Rules,
        *,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
    ) -> None:
        self.engine, self.stores = engine, stores
        self.ours: dict[str, Pod] = {}
        self.flying: dict[str, Job] = {}
        self.waiting: dict[str, str] = {}
        self.leases = LeaseBook(self._feed, self._counted)
        self.nodes = NodeBook(self._feed, stores.nodes, stores.reports, lambda uid: uid in self._held)
        self._hands, self._rules, self._clock, self._waited_s = hands, rules, clock, waited_s
        self._held: dict[str, Placement] = {}
        self._clearing: set[str] = set()
        self._serving = Serving()
        self._later: dict[str, Asked] | None = {}
        self._closed = False

    def open(self) -> None:
        """All that there was has been told: begin to decide."""
        later, self._later = self._later or {}, None
        for asked in later.values():
            self._ask(asked)

    def close(self) -> None:
        """Decide nothing more; what is under way goes on."""
        self._closed = True

    # --- what the watches tell -----------------------------------------------------------------------------

    def see_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        """Pods that name the claim may now be served, or no longer."""
        claim = new or old
        if claim is not None and not (old and new and _serves(old) == _serves(new)):
            self._look_at_pods(self.stores.pods.by("claim", key(claim)))

    def see_volume_claim(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if claim := new or old:
            self._look_at_pods(self.stores.pods.by("volume", key(claim)))

    def see_volume(self, old: Volume | None, new: Volume | None) -> None:
        if volume := new or old:
            claim = volume.spec.claim_ref
            self._look_at_pods(self.stores.pods.by("volume", f"{claim.namespace}/{claim.name}"))

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.status.phase in translate.TERMINAL:
            if pod := new or old:
                self._end(pod)
            return
        if new.spec.scheduler_name == self._rules.scheduler_name:
            self.ours[new.metadata.uid] = new
        if old is not None and _takes_the_same(old, new):
            return
        if new.spec.node_name:
            self._bound(new, landed=old is not None and not old.spec.node_name)
        elif new.metadata.uid in self.ours:
            self._look_at_pod(new)

    # --- what became of a job ------------------------------------------------------------------------------

    def done(self, outcome: Bound | Failed) -> None:
        job = outcome.job
        uid = job.pod.metadata.uid
        self.flying.pop(uid, None)
        if isinstance(outcome, Bound):
            self._placed(job)
            return
        self._free_claim(uid)
        for taken in outcome.taken:
            if taken.lease is not None:
                self.leases.found(taken.lease)
        self.leases.recount(uid)
        self._feed(events.PlaceFailed(uid))
        if (pod := self.ours.get(uid)) is not None and not pod.spec.node_name:
            self._look_at_pod(pod)

    def _placed(self, job: Job) -> None:
        uid = job.pod.metadata.uid
        if uid in self.ours:
            self._held[uid] = job.placement
        else:  # it ended before we heard that it was bound
            self._keep_ended(uid, job.placement)
            self._hands.ended(Ended(job.pod, job.placement))
        self.leases.recount(uid)
        self._feed(events.Placed(uid))

    def freed(self, uid: str) -> None:
        """What an ended pod held is free again."""
        self._feed(Gone(_ended_key(uid)))
        self._free_claim(uid)

    def cleared(self, uid: str) -> None:
        """Leftover leases of an unbound pod are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self.ours.get(uid)) is not None and not pod.spec.node_name:
            self._look_at_pod(pod, cleared=True)

    def tick(self) -> None:
        self._feed(events.Tick())

    def refresh(self, most: int) -> None:
        """Reasons grow old while others come and go: tell those that changed anew, at most so many at once,
        those told longest ago first."""
        now: dict[tuple[Shape, str, str], str] = {}
        for uid, told in list(self.waiting.items()):
            request = self.engine.waiting(uid)
            if most <= 0 or request is None:
                continue
            alike = (request.shape, request.strategy, request.allocator)
            if alike not in now:
                refusal = self.engine.why(uid)
                now[alike] = refusal.message if refusal else ""
            if now[alike] and now[alike] != told:
                most -= 1
                del self.waiting[uid]
                self._refuse(uid, now[alike])

    # --- what others ask -----------------------------------------------------------------------------------

    def fate(self, uid: str) -> Fate:
        """What we know of a pod by its UID."""
        if uid in self.flying:
            return "flying"
        if uid in self._held:
            return "bound"  # whoever bound it: other schedulers' pods are counted, too
        return "waiting" if uid in self.ours else "unknown"

    def placement(self, uid: str) -> Placement | None:
        """What a bound pod holds."""
        return self._held.get(uid)

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """The claim or template that the pod names."""
        name = wish.named_claim(pod)
        return self.stores.claims.get(f"{pod.metadata.namespace}/{name}") if name else None

    def devices(self, placement: Placement) -> tuple[Device, ...]:
        """The devices of a placement, in its order; those that the node no longer has are left out."""
        cluster = self.engine.cluster
        if placement.node not in cluster:
            return ()
        by_id = {device.id: device for device in cluster.node(placement.node).devices}
        return tuple(by_id[each] for each in placement.devices if each in by_id)

    # --- pods that wait ------------------------------------------------------------------------------------

    def _look_at_pods(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            if pod.metadata.uid in self.ours and not pod.spec.node_name:
                self._look_at_pod(pod)

    def _look_at_pod(self, pod: Pod, *, cleared: bool = False) -> None:
        uid = pod.metadata.uid
        # A pod that we bound may be shown unbound for a moment longer.
        if uid in self.flying or uid in self._clearing or uid in self._held:
            return
        if pod.metadata.deletion_timestamp or wish.is_gated(pod):
            self._withdraw(uid)
        elif self._rules.clears and not cleared and uid in self.leases:
            self._clearing.add(uid)
            self._withdraw(uid)
            self._hands.clear(pod)
        else:
            self._wish(pod)

    def _wish(self, pod: Pod) -> None:
        server = self._serving.server(f"{pod.metadata.namespace}/{asks.claim_name(pod)}")
        wished = wish.wish(pod, self.claim_of(pod), self.stores, server)
        if isinstance(wished, Request):
            self._ask(Asked(wished, self._clock() - self._waited_s(pod)))
        else:
            self._withdraw(pod.metadata.uid)
            self._refuse(pod.metadata.uid, wished)

    def _ask(self, asked: Asked) -> None:
        uid = asked.request.key
        if self._later is not None:
            self._later[uid] = asked
        elif uid in self.ours:
            try:
                self._feed(asked)
            except UnknownPolicy as error:
                self._refuse(uid, str(error))

    def _withdraw(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        if self._later:
            self._later.pop(uid, None)
        self._feed(Gone(uid))

    def _refuse(self, uid: str, why: str) -> None:
        if self.waiting.get(uid) != why and uid in self.ours:
            self.waiting[uid] = why
            self._hands.refuse(self.ours[uid], why)

    # --- pods that are bound, and their end ----------------------------------------------------------------

    def _bound(self, pod: Pod, *, landed: bool) -> None:
        uid, known = pod.metadata.uid, self._held.get(pod.metadata.uid)
        self.waiting.pop(uid, None)
        if landed and known and (known.node, known.devices) == (pod.spec.node_name, asks.given(pod)):
            return  # as we have just bound it
        try:
            placement = asks.held(pod, self._terms(pod))
        except BadQuantity as error:
            log.error("pod cannot be counted", pod=key(pod), error=str(error))
            return
        if placement is None:
            return
        if placement.unnamed:
            self.nodes.plugin_pod(uid, placement.node, placement.unnamed)
            placement = replace(placement, unnamed=0)
        self._serving.take(pod)
        self._held[uid] = placement
        self._feed(Held(placement))
        self.leases.recount(uid)

    def _terms(self, pod: Pod) -> GpuClaimSpec | None:
        """How the pod holds its devices: as its claim says, or the template that is yet to become one."""
        name = asks.claim_name(pod)
        claim = self.stores.claims.get(f"{pod.metadata.namespace}/{name}") if name else None
        claim = claim or self.claim_of(pod)
        return claim.spec if claim else None

    def _end(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.ours.pop(uid, None)
        placement = self._held.pop(uid, None)
        if placement is None:
            self._withdraw(uid)
        self.leases.recount(uid)  # before the pod's own share is free: its lease takes it over
        if placement is not None:
            self._keep_ended(uid, placement)
            self._withdraw(uid)
            self.nodes.plugin_pod_ended(uid, placement.node)
        if uid in self.flying:
            return  # what becomes of it is seen when its job is done
        if uid in self.leases or (placement is not None and placement.devices):
            self._hands.ended(Ended(pod, placement))
        else:
            self._free_claim(uid)

    def _keep_ended(self, uid: str, placement: Placement) -> None:
        """Without leases, devices stay taken by our own memory until they are `freed`."""
        if placement.devices and not self._rules.leases:
            self._feed(Held(replace(placement, key=_ended_key(uid), resources=(), host_ports=())))

    def _free_claim(self, uid: str) -> None:
        if claim := self._serving.drop(uid):
            self._look_at_pods(self.stores.pods.by("claim", claim))

    # --- the engine ----------------------------------------------------------------------------------------

    def _counted(self, uid: str) -> Placement | None:
        """What a pod counts by itself: as the engine assumes it, or as it has it."""
        job = self.flying.get(uid)
        return job.placement if job else self._held.get(uid)

    def _feed(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock()
        for action in self.engine.handle(event, now):
            if isinstance(action, events.Refuse):
                self._refuse(action.request.key, action.refusal.message)
            else:
                self._place(action)
        self._hands.wake_at(self.engine.deadline(now))

    def _place(self, action: events.Place) -> None:
        uid = action.request.key
        pod = self.ours[uid]
        job = Job(pod, action.placement, self.devices(action.placement), self.claim_of(pod))
        self.flying[uid] = job
        if self._serving.take(pod):
            self._hands.place(job)
        else:
            self._hands.give_up(job, f"GpuClaim {asks.claim_name(pod)} serves another pod by now")


def _ended_key(uid: str) -> str:
    return f"ended/{uid}"


def _takes_the_same(old: Pod, new: Pod) -> bool:
    """Whether nothing has changed for a bound pod but how it fares."""
    return (
        bool(new.spec.node_name)
        and old.spec == new.spec
        and old.metadata.annotations.get(names.ALLOCATED) == new.metadata.annotations.get(names.ALLOCATED)
    )


def _serves(claim: GpuClaim) -> tuple[str, str, bool]:
    """What of a claim matters to the pods that name it."""
    meta = claim.metadata
    return meta.uid, wish.served(claim), bool(meta.deletion_timestamp)


def claims_of(pod: Pod) -> list[str]:
    """Keys of the claims a pod has to do with: an index of the pod store."""
    own = {wish.named_claim(pod), asks.claim_name(pod)} - {""}
    return [f"{pod.metadata.namespace}/{name}" for name in sorted(own)]
