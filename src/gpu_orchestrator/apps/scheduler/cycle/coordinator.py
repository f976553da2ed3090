"""Where everything seen comes together: objects of the API server become events of the engine, and what the
engine wants done becomes jobs. Knows no network; `scheduler` plugs the watches in, `work` performs the jobs.

A pod of ours is in one of these places:
    waiting   asked for, or told why it cannot be      binding  being bound by us
    clearing  leases of an earlier try are taken off   held     bound, whoever bound it
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import structlog

from gpu_orchestrator.api import claims, names, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod, VolumeClaim
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.holdings import Holdings
from gpu_orchestrator.apps.scheduler.accounting.lease_index import LeaseIndex
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Executor, Outcome, PodEnded
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from gpu_orchestrator.apps.scheduler.cycle.pending import PendingPods
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Unschedulable
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded

Fate = Literal["bound", "binding", "waiting", "unknown"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """`clears`: leases of an unbound pod that we do not know of are leftovers and are cleared at once, as the
    only scheduler may; otherwise they may be another's work in progress. `leases`: false where there are
    none, and we have to remember ourselves what an ended pod still holds."""

    scheduler_name: str = names.SCHEDULER
    clears: bool = True
    leases: bool = True


class Coordinator:
    """`waited_s` tells how long ago a pod was created."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        executor: Executor,
        rules: CoordinatorConfig,
        *,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
    ) -> None:
        self.engine, self.stores = engine, stores
        self.our_pods: dict[str, Pod] = {}
        self.binding: dict[str, BindJob] = {}
        self.waiting = PendingPods(self._feed, engine, self.our_pods, executor.refuse)
        self.leases = LeaseIndex(self._feed, self._counted, stores.leases)
        self.held = Holdings(self._feed, stores, keeps_ended=not rules.leases)
        self.nodes = self.held.nodes
        self._executor, self._rules, self._clock, self._waited_s = executor, rules, clock, waited_s
        self._clearing: set[str] = set()
        self._claim_users = ClaimUsers()
        self._closed = False

    def open(self) -> None:
        """All that there was has been told: begin to decide."""
        self.waiting.open()

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
            self.our_pods[new.metadata.uid] = new
        if old is not None and _takes_the_same(old, new):
            return
        if new.spec.node_name:
            self._bound(new, landed=old is not None and not old.spec.node_name)
        elif new.metadata.uid in self.our_pods:
            self._look_at_pod(new)

    # --- what became of a job ------------------------------------------------------------------------------

    def done(self, outcome: Outcome) -> None:
        job = outcome.job
        uid = job.pod.metadata.uid
        self.binding.pop(uid, None)
        if isinstance(outcome, Bound):
            self._placed(job)
            return
        if uid not in self.held:  # others may have bound it meanwhile, and its claim serves it on
            self._free_claim(uid)
        for lease in outcome.found:
            self.leases.found(lease)
        self.leases.recount(uid)
        self._feed(events.PlaceFailed(uid))
        if (pod := self.our_pods.get(uid)) is not None and not pod.spec.node_name:
            self._look_at_pod(pod)

    def _placed(self, job: BindJob) -> None:
        uid = job.pod.metadata.uid
        if uid in self.our_pods:
            self.held.placed(uid, job.placement)
        else:  # it ended before we heard that it was bound
            self.held.keep(uid, job.placement)
            self._executor.ended(PodEnded(job.pod, job.placement))
        self.leases.recount(uid)
        self._feed(events.Placed(uid))

    def freed(self, uid: str) -> None:
        """What an ended pod held is free again."""
        self.held.freed(uid)
        self._free_claim(uid)

    def cleared(self, uid: str) -> None:
        """Leftover leases of an unbound pod are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self.our_pods.get(uid)) is not None and not pod.spec.node_name:
            self._look_at_pod(pod, cleared=True)

    def tick(self) -> None:
        self._feed(events.Tick())

    # --- what others ask -----------------------------------------------------------------------------------

    def fate(self, uid: str) -> Fate:
        """What we know of a pod by its UID."""
        if uid in self.binding:
            return "binding"
        if uid in self.held:
            return "bound"  # whoever bound it: other schedulers' pods are counted, too
        return "waiting" if uid in self.our_pods else "unknown"

    # --- pods that wait ------------------------------------------------------------------------------------

    def _look_at_pods(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            if pod.metadata.uid in self.our_pods and not pod.spec.node_name:
                self._look_at_pod(pod)

    def _look_at_pod(self, pod: Pod, *, cleared: bool = False) -> None:
        uid = pod.metadata.uid
        # A pod that we bound may be shown unbound for a moment longer.
        if uid in self.binding or uid in self._clearing or uid in self.held:
            return
        if pod.metadata.deletion_timestamp or pod_request.is_gated(pod):
            self.waiting.withdraw(uid)
        elif self._rules.clears and not cleared and uid in self.leases:
            self._clearing.add(uid)
            self.waiting.withdraw(uid)
            self._executor.clear(pod)
        else:
            self._wish(pod)

    def _wish(self, pod: Pod) -> None:
        user = self._claim_users.user_of(f"{pod.metadata.namespace}/{claims.claim_name(pod)}")
        match pod_request.request_of(pod, self.stores.claim_of(pod), self.stores, user):
            case Request() as request:
                self.waiting.ask(RequestAdded(request, self._clock() - self._waited_s(pod)))
            case Unschedulable(why):
                self.waiting.withdraw(pod.metadata.uid)
                self.waiting.refuse(pod.metadata.uid, why)

    # --- pods that are bound, and their end ----------------------------------------------------------------

    def _bound(self, pod: Pod, *, landed: bool) -> None:
        uid, known = pod.metadata.uid, self.held.get(pod.metadata.uid)
        self.waiting.bound(uid)
        if landed and known and (known.node, known.devices) == (pod.spec.node_name, claims.given(pod)):
            return  # as we have just bound it
        if (placement := self.held.taken_by(pod)) is not None:
            self._claim_users.take(pod)  # before the engine hears of it: it may place another pod at once
            self.held.take(placement)
            self.leases.recount(uid)

    def _end(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.our_pods.pop(uid, None)
        placement = self.held.drop(uid)
        if placement is None:
            self.waiting.withdraw(uid)
        self.leases.recount(uid)  # before the pod's own share is free: its lease takes it over
        if placement is not None:
            self.held.keep(uid, placement)
            self.waiting.withdraw(uid)
            self.nodes.plugin_pod_ended(uid, placement.node)
        if uid in self.binding:
            return  # what becomes of it is seen when its job is done
        if uid in self.leases or (placement is not None and placement.devices):
            self._executor.ended(PodEnded(pod, placement))
        else:
            self._free_claim(uid)

    def _free_claim(self, uid: str) -> None:
        if claim := self._claim_users.drop(uid):
            self._look_at_pods(self.stores.pods.by("claim", claim))

    # --- the engine ----------------------------------------------------------------------------------------

    def _counted(self, uid: str) -> Placement | None:
        """What a pod counts by itself: as the engine assumes it, or as it has it."""
        job = self.binding.get(uid)
        return job.placement if job else self.held.get(uid)

    def _feed(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock()
        for action in self.engine.handle(event, now):
            if isinstance(action, events.Refuse):
                self.waiting.refuse(action.request.key, action.refusal.message)
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
        if self._claim_users.take(pod):
            self._executor.place(job)
        else:
            self._executor.abandon(job, f"GpuClaim {claims.claim_name(pod)} serves another pod by now")


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
    return meta.uid, claims.served(claim), bool(meta.deletion_timestamp)
