"""Where everything seen comes together: objects of the API server become events of the engine, and what the
engine wants done becomes jobs. Knows no network; `run` plugs the watches in, `work` performs the jobs.

A device is accounted to exactly one of these at any moment:
    the engine's own assumption   while its pod is being bound by us
    the bound pod                 while it lives, by the ids in its annotation
    the lease                     in every other case: another scheduler's, an ended pod's, a leftover
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import structlog

from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api import claims as asks
from gpu_orchestrator.api import deviceleases, inventory, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, Node, Pod, VolumeClaim
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler import wish
from gpu_orchestrator.apps.scheduler.bind import Bound, Failed, Job
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Asked, Event, Gone, Held, NodeGone, NodeSeen
from gpu_orchestrator.policies.registry import UnknownPolicy

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

    def refuse(self, pod: Pod, why: str) -> None: ...

    def ended(self, ended: Ended) -> None: ...

    def clear(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...


class Desk:
    """`clears`: leases of an unbound pod that we do not know of are leftovers and are cleared at once, as the
    only scheduler may; otherwise they may be another's work in progress. `leases`: false where there are
    none, and we have to remember ourselves what an ended pod still holds."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        hands: Hands,
        *,
        scheduler_name: str,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
        clears: bool = True,
        leases: bool = True,
    ) -> None:
        self.engine, self.stores = engine, stores
        self.flying: dict[str, Job] = {}
        self.waiting: dict[str, str] = {}
        self.ours: dict[str, Pod] = {}
        self._hands, self._name, self._clock, self._waited_s = hands, scheduler_name, clock, waited_s
        self._clears, self._leases = clears, leases
        self._clearing: set[str] = set()
        self._held: dict[str, Placement] = {}
        self._by_lease: dict[str, dict[str, Placement]] = {}
        self._leases_of: dict[str, dict[str, Lease]] = {}
        self._plugin: dict[str, dict[str, int]] = {}
        self._strangers: dict[str, Placement] = {}
        self._later: list[Asked] | None = []
        self._closed = False

    # --- what the watches tell -----------------------------------------------------------------------------

    def open(self) -> None:
        """All that there was has been told: begin to decide."""
        later, self._later = self._later or [], None
        for asked in later:
            self._ask(asked)

    def see_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._look_at_node(new.metadata.name)
        elif old is not None:
            self._feed(NodeGone(old.metadata.name))

    def see_report(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        report = new or old
        if report is not None:
            self._look_at_node(report.spec.node_name)

    def see_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        """Pods that name the claim may now be served, or no longer."""
        claim = new or old
        if claim is None or (old and new and _serves(old) == _serves(new)):
            return
        self._look_at_pods(self.stores.pods.by("claim", key(claim)))

    def see_volume_claim(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if claim := new or old:
            self._look_at_pods(self.stores.pods.by("volume", key(claim)))

    def see_volume(self, old: Volume | None, new: Volume | None) -> None:
        if volume := new or old:
            claim = volume.spec.claim_ref
            self._look_at_pods(self.stores.pods.by("volume", f"{claim.namespace}/{claim.name}"))

    def _look_at_pods(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            if pod.metadata.uid in self.ours and not pod.spec.node_name:
                self._look_at_pod(pod)

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.status.phase in translate.TERMINAL:
            pod = new or old
            if pod is not None:
                self._end(pod)
        elif new.spec.node_name:
            self._bound(new)
        elif new.spec.scheduler_name == self._name:
            self.ours[new.metadata.uid] = new
            self._look_at_pod(new)

    def see_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None or not deviceleases.is_device(lease):
            return
        name = lease.metadata.name
        before = {each.uid for each in deviceleases.holders(old)} if old else set()
        after = {each.uid for each in deviceleases.holders(new)} if new else set()
        for uid in before - after:
            self._leases_of.get(uid, {}).pop(name, None)
            if not self._leases_of.get(uid):
                self._leases_of.pop(uid, None)
        for uid in after:
            self._leases_of.setdefault(uid, {})[name] = lease
        self._account(lease if new else None, name)

    def leases_of(self, uid: str) -> list[Lease]:
        """The device leases that name this pod."""
        return list(self._leases_of.get(uid, {}).values())

    # --- what became of a job ------------------------------------------------------------------------------

    def done(self, outcome: Bound | Failed) -> None:
        job = outcome.job
        pod, uid = job.pod, job.pod.metadata.uid
        self.flying.pop(uid, None)
        if isinstance(outcome, Bound):
            self._placed(job)
            return
        for taken in outcome.taken:
            if taken.lease is not None:
                self._account(taken.lease, taken.lease.metadata.name)
        self._reaccount(uid)
        self._feed(events.PlaceFailed(uid))
        known = self.stores.pods.get(key(pod))
        if known is not None and known.metadata.uid == uid and not known.spec.node_name:
            self._look_at_pod(known)

    def _placed(self, job: Job) -> None:
        uid = job.pod.metadata.uid
        if uid in self.ours:
            self._held[uid] = job.placement
        else:  # it ended before we heard that it was bound
            self._keep_ended(uid, job.placement)
            self._hands.ended(Ended(job.pod, job.placement))
        self._reaccount(uid)
        self._feed(events.Placed(uid))

    def freed(self, uid: str) -> None:
        """What an ended pod held is free again."""
        self._feed(Gone(f"ended/{uid}"))

    def cleared(self, uid: str) -> None:
        """Leftover leases of an unbound pod are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self.ours.get(uid)) is not None and not pod.spec.node_name:
            self._look_at_pod(pod, cleared=True)

    def tick(self) -> None:
        self._feed(events.Tick())

    # --- pods ----------------------------------------------------------------------------------------------

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """The claim or template that the pod names."""
        name = wish.named_claim(pod)
        return self.stores.claims.get(f"{pod.metadata.namespace}/{name}") if name else None

    def _look_at_pod(self, pod: Pod, *, cleared: bool = False) -> None:
        uid = pod.metadata.uid
        # A pod that we bound may be shown unbound for a moment longer.
        if uid in self.flying or uid in self._clearing or uid in self._held:
            return
        if pod.metadata.deletion_timestamp or wish.is_gated(pod):
            self._withdraw(uid)
            return
        if self._clears and not cleared and uid in self._leases_of:
            self._clearing.add(uid)
            self._withdraw(uid)
            self._hands.clear(pod)
            return
        wished = wish.wish(pod, self.claim_of(pod), self.stores)
        if isinstance(wished, Request):
            self._ask(Asked(wished, self._clock() - self._waited_s(pod)))
        else:
            self._withdraw(uid)
            self._refuse(uid, wished)

    def _ask(self, asked: Asked) -> None:
        if self._later is not None:
            self._later.append(asked)
            return
        uid = asked.request.key
        if uid not in self.ours:
            return  # it ended while all that there was was being told
        try:
            self._feed(asked)
        except UnknownPolicy as error:
            self._refuse(uid, str(error))

    def _withdraw(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        if self._later is not None:
            self._later = [each for each in self._later if each.request.key != uid]
        self._feed(Gone(uid))

    def _refuse(self, uid: str, why: str) -> None:
        if self.waiting.get(uid) != why and uid in self.ours:
            self.waiting[uid] = why
            self._hands.refuse(self.ours[uid], why)

    def _bound(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.waiting.pop(uid, None)
        if pod.spec.scheduler_name == self._name:
            self.ours[uid] = pod
        try:
            placement = asks.held(pod, self.terms(pod))
        except BadQuantity as error:
            log.error("pod cannot be counted", pod=key(pod), error=str(error))
            return
        if placement is None:
            return
        placement = self._count_plugin(pod, placement)
        if not _same(self._held.get(uid), placement):
            self._held[uid] = placement
            self._feed(Held(placement))
        self._reaccount(uid)

    def terms(self, pod: Pod) -> GpuClaimSpec | None:
        """How the pod holds its devices: as its claim says."""
        name = asks.claim_name(pod)
        claim = self.stores.claims.get(f"{pod.metadata.namespace}/{name}") if name else None
        return claim.spec if claim else None

    def _end(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.ours.pop(uid, None)
        placement = self._held.pop(uid, None)
        self._reaccount(uid)  # before the pod's own share is free: its lease takes it over
        if placement is not None:
            self._keep_ended(uid, placement)
        if uid not in self.flying and (uid in self._leases_of or (placement and placement.devices)):
            self._hands.ended(Ended(pod, placement))
        self._withdraw(uid)
        if placement is not None and self._plugin.get(placement.node, {}).pop(uid, None) is not None:
            self._look_at_node(placement.node)

    def _keep_ended(self, uid: str, placement: Placement) -> None:
        """Without leases, devices stay taken by our own memory until they are `freed`."""
        if placement.devices and not self._leases:
            devices = replace(placement, key=f"ended/{uid}", resources=(), host_ports=())
            self._feed(Held(devices))

    def fate(self, uid: str) -> Literal["bound", "flying", "waiting", "unknown"]:
        """What we know of a pod by its UID."""
        if uid in self.flying:
            return "flying"
        if uid not in self.ours:
            return "unknown"
        return "bound" if uid in self._held else "waiting"

    def placement(self, uid: str) -> Placement | None:
        """What a bound pod holds."""
        return self._held.get(uid)

    # --- leases --------------------------------------------------------------------------------------------

    def _reaccount(self, uid: str) -> None:
        for name, lease in list(self._leases_of.get(uid, {}).items()):
            self._account(lease, name)

    def _account(self, lease: Lease | None, name: str) -> None:
        """Count what a lease holds, except for holders that count it themselves."""
        wanted: dict[str, Placement] = {}
        spot = deviceleases.spot(lease) if lease else None
        if lease is not None and spot is not None:
            exclusive = not deviceleases.is_shared(lease)
            for holder in deviceleases.holders(lease):
                if not self._counts_itself(holder.uid, spot):
                    wanted[holder.uid] = holder.placement(spot, exclusive=exclusive)
        told = self._by_lease.pop(name, {})
        if wanted:
            self._by_lease[name] = wanted
        for uid, placement in wanted.items():
            if told.get(uid) != placement:
                self._feed(Held(placement))
        for uid, placement in told.items():
            if uid not in wanted:
                self._feed(Gone(placement.key))

    def _counts_itself(self, uid: str, spot: deviceleases.Spot) -> bool:
        job = self.flying.get(uid)
        placement = job.placement if job else self._held.get(uid)
        return placement is not None and placement.node == spot.node and spot.device in placement.devices

    # --- nodes ---------------------------------------------------------------------------------------------

    def devices(self, placement: Placement) -> tuple[Device, ...]:
        """The devices of a placement, in its order; those that the node no longer has are left out."""
        cluster = self.engine.cluster
        if placement.node not in cluster:
            return ()
        by_id = {device.id: device for device in cluster.node(placement.node).devices}
        return tuple(by_id[each] for each in placement.devices if each in by_id)

    def _look_at_node(self, name: str) -> None:
        seen, report = self.stores.nodes.get(name), self.stores.reports.get(name)
        if seen is None:
            return
        self._count_strangers(name, report)  # before the node may be given to others
        try:
            self._feed(NodeSeen(inventory.node_of(seen, report, barred=self._barred(name, report))))
        except (BadQuantity, ValueError) as error:
            log.error("node cannot be counted", node=name, error=str(error))

    def _count_plugin(self, pod: Pod, placement: Placement) -> Placement:
        """A device plugin's pod takes what the agent tells; where none tells, the node is barred."""
        if not placement.unnamed:
            return placement
        uid, node = pod.metadata.uid, placement.node
        if uid not in self._plugin.setdefault(node, {}):
            self._plugin[node][uid] = placement.unnamed
            self._look_at_node(node)
        return replace(placement, unnamed=0)

    def _barred(self, name: str, report: GpuNodeStatus | None) -> str:
        used = inventory.used_by(report)
        untold = any(len(used.get(uid, ())) < count for uid, count in self._plugin.get(name, {}).items())
        return inventory.PLUGIN_UNTOLD if untold else ""

    def _count_strangers(self, name: str, report: GpuNodeStatus | None) -> None:
        """Devices used by pods that hold none by our account: a device plugin's, or what is left of an ended
        one."""
        used = inventory.used_by(report)
        known = self._plugin.get(name, {})
        ids = {each for uid, them in used.items() if uid in known or uid not in self._held for each in them}
        placement = Placement(f"strangers/{name}", name, devices=tuple(sorted(ids)))
        before = self._strangers.get(name)
        if ids and before != placement:
            self._strangers[name] = placement
            self._feed(Held(placement))
        elif not ids and before is not None:
            del self._strangers[name]
            self._feed(Gone(before.key))

    # --- the engine ----------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock()
        self._perform(self.engine.handle(event, now))
        self._hands.wake_at(self.engine.deadline(now))

    def close(self) -> None:
        """Decide nothing more; what is under way goes on."""
        self._closed = True

    def _perform(self, actions: Iterable[events.Action]) -> None:
        for action in actions:
            uid = action.request.key
            pod = self.ours.get(uid)
            if isinstance(action, events.Refuse):
                self._refuse(uid, action.refusal.message)
            elif pod is not None:
                job = Job(pod, action.placement, self.devices(action.placement), self.claim_of(pod))
                self.flying[uid] = job
                self._hands.place(job)


def _same(known: Placement | None, seen: Placement) -> bool:
    """Equal but for the bandwidth, which a bound pod does not tell."""
    return known is not None and (
        known.node,
        known.devices,
        known.resources,
        known.exclusive,
        known.milli,
        known.memory_mib,
        known.unnamed,
        known.host_ports,
    ) == (
        seen.node,
        seen.devices,
        seen.resources,
        seen.exclusive,
        seen.milli,
        seen.memory_mib,
        seen.unnamed,
        seen.host_ports,
    )


def _serves(claim: GpuClaim) -> tuple[str, str, bool]:
    """What of a claim matters to the pods that name it."""
    meta = claim.metadata
    return meta.uid, wish.served(claim), bool(meta.deletion_timestamp)


def claims_of(pod: Pod) -> list[str]:
    """Keys of the claims a pod has to do with: an index of the pod store."""
    own = {wish.named_claim(pod), asks.claim_name(pod)} - {""}
    return [f"{pod.metadata.namespace}/{name}" for name in sorted(own)]
