"""Turn watch events into events of the engine, and the engine's actions into jobs for the executor.

Makes no network calls: `scheduler` connects the watches, `executor` performs the jobs.

Each of our pods is in one of these states:
    pending   request queued, or refused with a reason       binding  a bind job is running
    clearing  leases of an earlier try are being released    bound    by us or by another scheduler
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import structlog

from gpu_orchestrator.api import claims, names, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Namespace, Pod, VolumeClaim
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.holdings import Holdings
from gpu_orchestrator.apps.scheduler.accounting.lease_index import LeaseIndex
from gpu_orchestrator.apps.scheduler.accounting.nominations import Nominations
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Executor, Outcome, PodEnded
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from gpu_orchestrator.apps.scheduler.cycle.pending import PendingPods
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Unschedulable
from gpu_orchestrator.apps.scheduler.cycle.surroundings import Surroundings
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded

PodState = Literal["bound", "binding", "pending", "unknown"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """`clears_leftovers`: clear unknown leases of an unbound pod at once. Only a single scheduler may do so;
    beside others, such a lease may be another scheduler's bind in progress. `uses_leases`: False if devices
    have no leases; then the coordinator itself remembers what an ended pod still holds."""

    scheduler_name: str = names.SCHEDULER
    clears_leftovers: bool = True
    uses_leases: bool = True


class Coordinator:
    """`waited_s` returns how long ago a pod was created."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        executor: Executor,
        config: CoordinatorConfig,
        *,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
    ) -> None:
        self.engine, self.stores = engine, stores
        self.our_pods: dict[str, Pod] = {}
        self.binding: dict[str, BindJob] = {}
        self.pending = PendingPods(self._feed, engine, self.our_pods, executor.report_refused)
        self.lease_index = LeaseIndex(self._feed, self._own_placement, stores.leases)
        self.holdings = Holdings(self._feed, stores, keeps_ended=not config.uses_leases)
        self.nodes = self.holdings.nodes
        self.nominations = Nominations(self._feed, self.nodes, config.scheduler_name)
        self._surroundings = Surroundings(stores, self.our_pods, self._check_unbound_pods, self._is_placed)
        self._executor, self._config, self._clock, self._waited_s = executor, config, clock, waited_s
        self._clearing: set[str] = set()
        self._claim_users = ClaimUsers()
        self._closed = False

    def open(self) -> None:
        """Begin to decide: the watches have delivered the initial state."""
        self._surroundings.open()
        self._check_selecting_pods()
        self.pending.open()

    def close(self) -> None:
        """Decide nothing more; running jobs go on."""
        self._closed = True

    # --- handlers of the watches ---------------------------------------------------------------------------

    def on_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        """Check the pods that name the claim: they may be able to use it now, or no longer."""
        claim = new or old
        if claim is not None and not (old and new and _usability(old) == _usability(new)):
            self._check_unbound_pods(self.stores.pods.by("claim", key(claim)))

    def on_volume_claim(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if claim := new or old:
            self._check_unbound_pods(self.stores.pods.by("volume", key(claim)))

    def on_volume(self, old: Volume | None, new: Volume | None) -> None:
        if volume := new or old:
            claim = volume.spec.claim_ref
            self._check_unbound_pods(self.stores.pods.by("volume", f"{claim.namespace}/{claim.name}"))

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        """Check the pods whose rules select namespaces by label."""
        is_same = old is not None and new is not None and old.metadata.labels == new.metadata.labels
        if not is_same and self._surroundings.is_open:
            self._check_selecting_pods()

    def _check_selecting_pods(self) -> None:
        pods = self._surroundings.selecting_namespaces()
        self._withdraw(pods)
        for pod in sorted(pods, key=lambda each: not each.spec.node_name):
            self._take_in(pod, just_bound=False)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.status.phase in translate.TERMINAL:
            if pod := new or old:
                self._pod_ended(pod)
            return
        if new.spec.scheduler_name == self._config.scheduler_name:
            self.our_pods[new.metadata.uid] = new
        if old is None or not _is_same_holding(old, new):
            self._take_in(new, just_bound=old is not None and not old.spec.node_name)

    def _take_in(self, pod: Pod, *, just_bound: bool) -> None:
        is_ours = pod.metadata.uid in self.our_pods
        kept_away = self._surroundings.observe(pod) if is_ours or pod.spec.node_name else []
        self._withdraw(kept_away)  # they ask again below, when the pod counts where it is
        if pod.spec.node_name:
            self._pod_bound(pod, just_bound=just_bound)
        elif is_ours:
            self._check_unbound(pod)
        self._check_unbound_pods(kept_away)

    # --- results that the executor and the releaser report -------------------------------------------------

    def done(self, outcome: Outcome) -> None:
        """Take in the outcome of a bind job."""
        job = outcome.job
        uid = job.pod.metadata.uid
        self.binding.pop(uid, None)
        if isinstance(outcome, Bound):
            self._placed(job)
            return
        if uid not in self.holdings:  # if another scheduler has bound it meanwhile, it keeps its claim
            self._free_claim(uid)
        for lease in outcome.found:
            self.lease_index.add_found(lease)
        self.lease_index.recount(uid)
        self._feed(events.PlaceFailed(uid))
        if (pod := self.our_pods.get(uid)) is not None and not pod.spec.node_name:
            self._check_unbound(pod)
        self._surroundings.volumes_changed(job.pod)

    def _placed(self, job: BindJob) -> None:
        uid = job.pod.metadata.uid
        if uid in self.our_pods:
            self.holdings.record(uid, job.placement)
        else:  # it ended before the bind was answered
            self.holdings.keep_ended(uid, job.placement)
            self._executor.release(PodEnded(job.pod, job.placement))
        self.lease_index.recount(uid)
        self._feed(events.Placed(uid))

    def freed(self, uid: str) -> None:
        """Count the devices and the claim of an ended pod as free."""
        self.holdings.freed(uid)
        self._free_claim(uid)

    def cleared(self, uid: str) -> None:
        """Queue the pod again: its leftover leases are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self.our_pods.get(uid)) is not None and not pod.spec.node_name:
            self._check_unbound(pod, cleared=True)

    def tick(self) -> None:
        self._feed(events.Tick())

    # --- queries -------------------------------------------------------------------------------------------

    def state_of(self, uid: str) -> PodState:
        """Return the state of the pod with this UID."""
        if uid in self.binding:
            return "binding"
        if uid in self.holdings:
            return "bound"  # also if another scheduler bound it
        return "pending" if uid in self.our_pods else "unknown"

    # --- unbound pods --------------------------------------------------------------------------------------

    def _is_placed(self, uid: str) -> bool:
        return uid in self.binding or uid in self.holdings

    def _withdraw(self, pods: Iterable[Pod]) -> None:
        """Withdraw the requests of these pods together, so that none of them is decided meanwhile."""
        waiting = [pod.metadata.uid for pod in pods if not pod.spec.node_name]
        waiting = [uid for uid in waiting if not self._is_placed(uid)]
        if waiting:
            self._feed(*map(events.RequestRemoved, waiting))
            for uid in waiting:
                self.pending.withdraw(uid)

    def _check_unbound_pods(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            if pod.metadata.uid in self.our_pods and not pod.spec.node_name:
                self._check_unbound(pod)

    def _check_unbound(self, pod: Pod, *, cleared: bool = False) -> None:
        """Queue the pod, withdraw it, or clear its leftover leases first."""
        uid = pod.metadata.uid
        # The watch may show a pod that we have bound as unbound for a moment longer.
        if uid in self._clearing or self._is_placed(uid):
            return
        if pod.metadata.deletion_timestamp or pod_request.is_gated(pod):
            self.pending.withdraw(uid)
        elif self._config.clears_leftovers and not cleared and uid in self.lease_index:
            self._clearing.add(uid)
            self.pending.withdraw(uid)
            self._executor.clear_leases(pod)
        else:
            self._queue(pod)

    def _queue(self, pod: Pod) -> None:
        user = self._claim_users.user_of(f"{pod.metadata.namespace}/{claims.claim_name(pod)}")
        others = self._surroundings.others(pod, user)
        match pod_request.request_of(pod, self.stores.claim_of(pod), self.stores, others):
            case Request() as request:
                self.pending.add(RequestAdded(request, self._clock() - self._waited_s(pod)))
            case Unschedulable(why):
                self.pending.withdraw(pod.metadata.uid)
                self.pending.refuse(pod.metadata.uid, why)

    # --- bound and ended pods ------------------------------------------------------------------------------

    def _pod_bound(self, pod: Pod, *, just_bound: bool) -> None:
        uid, known = pod.metadata.uid, self.holdings.get(pod.metadata.uid)
        self.pending.clear_reason(uid)
        if just_bound and known and self._is_bound_as(known, pod):
            return  # we have just bound it so
        if (placement := self.holdings.placement_of(pod)) is not None:
            # Before the engine gets the event: it may place another pod at once.
            self._claim_users.assign(pod)
            self.holdings.add(placement)
            self.lease_index.recount(uid)
            self._surroundings.volumes_changed(pod)

    def _is_bound_as(self, known: Placement, pod: Pod) -> bool:
        is_there = (known.node, known.devices) == (pod.spec.node_name, claims.given(pod))
        return is_there and known.neighbour == self._surroundings.neighbour(pod)

    def _pod_ended(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.our_pods.pop(uid, None)
        placement = self.holdings.remove(uid)
        if placement is None:
            self.pending.withdraw(uid)
        self._surroundings.ended(pod)
        self.lease_index.recount(uid)  # before the pod's own count goes: its lease counts from here on
        if placement is not None:
            self.holdings.keep_ended(uid, placement)
            self.pending.withdraw(uid)
            self.nodes.remove_plugin_pod(uid, placement.node)
        if uid in self.binding:
            return  # `done` decides when its job has an outcome
        if uid in self.lease_index or (placement is not None and placement.devices):
            self._executor.release(PodEnded(pod, placement))
        else:
            self._free_claim(uid)

    def _free_claim(self, uid: str) -> None:
        """End the assignment of the pod's claim and check the pods that wait for it."""
        if claim := self._claim_users.release(uid):
            self._check_unbound_pods(self.stores.pods.by("claim", claim))

    # --- the engine ----------------------------------------------------------------------------------------

    def _own_placement(self, uid: str) -> Placement | None:
        """Return what a pod counts apart from its leases: what the engine assumes, or what it is bound to."""
        job = self.binding.get(uid)
        return job.placement if job else self.holdings.get(uid)

    def _feed(self, event: Event, *more: Event) -> None:
        """Send events to the engine, all before it decides, and perform the actions that it returns."""
        if self._closed:
            return
        now = self._clock()
        actions = self.engine.handle_all((event, *more), now) if more else self.engine.handle(event, now)
        for action in actions:
            if isinstance(action, events.Refuse):
                self.pending.refuse(action.request.key, action.refusal.message)
            else:
                self._place(action)
        self._executor.wake_at(self.engine.deadline(now))

    def _place(self, action: events.Place) -> None:
        uid = action.request.key
        pod = self.our_pods[uid]
        job = BindJob(
            pod, action.placement, self.engine.cluster.devices(action.placement), self.stores.claim_of(pod)
        )
        self.binding[uid] = job
        if not self._claim_users.assign(pod):
            self._executor.abandon(job, f"GpuClaim {claims.claim_name(pod)} serves another pod by now")
        elif conflict := self._surroundings.volume_conflict(pod):
            self._executor.abandon(job, conflict)
        else:
            self._executor.bind(job)


def _is_same_holding(old: Pod, new: Pod) -> bool:
    """Return True if a bound pod holds the same as before, and other pods' rules see the same of it."""
    return (
        bool(new.spec.node_name)
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.metadata.annotations.get(names.ALLOCATED) == new.metadata.annotations.get(names.ALLOCATED)
    )


def _usability(claim: GpuClaim) -> tuple[str, str, bool]:
    """Return the part of a claim that decides which pods may use it."""
    meta = claim.metadata
    return meta.uid, claims.reserved_for(claim), bool(meta.deletion_timestamp)
