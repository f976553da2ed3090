"""Turn watch events into events of the engine, and the engine's actions into jobs for the executor.

Makes no network calls: `scheduler` connects the watches, `executor` performs the jobs.

Each of our pods is in one of these states:
    pending   request queued, or refused with a reason       binding  a bind job is running
    clearing  leases of an earlier try are being released    bound    by us or by another scheduler
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from gpu_orchestrator.api import claims, deviceenv, first_consumer, names, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Namespace, Pod, VolumeClaim
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.api.volumes import NotReady, Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.holdings import Holdings
from gpu_orchestrator.apps.scheduler.accounting.lease_index import LeaseIndex
from gpu_orchestrator.apps.scheduler.accounting.nominations import Nominations
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Executor, Failed, Outcome, PodEnded
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from gpu_orchestrator.apps.scheduler.cycle.initial_holdings import InitialHoldings
from gpu_orchestrator.apps.scheduler.cycle.pending import PendingPods
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Unschedulable
from gpu_orchestrator.apps.scheduler.cycle.surroundings import Surroundings
from gpu_orchestrator.apps.scheduler.cycle.volume_plans import VolumePlans
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded

PodState = Literal["bound", "binding", "pending", "unknown"]

TOLD_AFTER = 3
"""Failures in a row after which a pod is told why it is not bound. A refusal that will repeat is told at
once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """`clears_leftovers`: clear unknown leases of an unbound pod at once. Only a single scheduler may do so;
    beside others, such a lease may be another scheduler's bind in progress. Leases found at the start are
    cleared by every scheduler: most of them are its own, from before a crash. `uses_leases`: False if devices
    have no leases; then a pod's annotation is the only word on its devices. `max_waiting_shapes`: how many
    different shapes of one namespace are considered at once. `requires_env`: refuse pods whose containers do
    not take their devices from our annotations."""

    scheduler_name: str = names.SCHEDULER
    clears_leftovers: bool = True
    uses_leases: bool = True
    max_waiting_shapes: int = 1000
    requires_env: bool = False


class Coordinator:
    """`waited_s` returns how long ago a pod was created; `is_agent_live` whether a node's agent is."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        executor: Executor,
        config: CoordinatorConfig,
        *,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
        is_agent_live: Callable[[str], bool] = lambda node: True,
    ) -> None:
        self.engine, self.stores = engine, stores
        self.our_pods: dict[str, Pod] = {}
        self.binding: dict[str, BindJob] = {}
        self.pending = PendingPods(
            self._feed,
            engine,
            self.our_pods,
            executor.report_refused,
            wake=lambda: executor.wake_at(clock()),
            is_placed=self._is_placed,
            max_shapes=config.max_waiting_shapes,
        )
        self.lease_index = LeaseIndex(
            self._feed,
            self._own_placement,
            stores.leases,
            keeps=lambda hold, held: self.holdings.keeps_lost(hold, held),
            changed=lambda uid, node: self.nodes.recount(uid, node),
        )
        self.holdings = Holdings(self._feed, stores, leased=self.lease_index.devices, is_live=is_agent_live)
        self.nodes = self.holdings.nodes
        self.nominations = Nominations(self._feed, self.nodes, config.scheduler_name)
        self._surroundings = Surroundings(stores, self.our_pods, self._check_unbound_pods, self._is_placed)
        self.volume_plans = VolumePlans(
            stores, self._check_unbound_pods, wake=lambda: executor.wake_at(clock())
        )
        self._executor, self._config, self._clock, self._waited_s = executor, config, clock, waited_s
        self._clearing: set[str] = set()
        self._claim_users = ClaimUsers()
        self._failures: dict[str, int] = {}
        self._initial: InitialHoldings | None = InitialHoldings()
        self._opened = self._closed = False

    def count_holdings(self) -> Iterator[None]:
        """Count what is held in the initial state, step by step. Afterwards every change counts at once."""
        if self._initial is not None:
            yield from self._initial.send(lambda batch: self.engine.handle_all(batch, self._clock()))
            self._initial = None

    def check_rules(self) -> Iterator[None]:
        """Check the pods that wait against the rules of all pods, step by step. Afterwards every rule counts
        at once."""
        if not self._opened:
            self._opened = True
            yield from self._surroundings.opening(self._check_unbound)
            for pod in self._surroundings.selecting_namespaces():
                if (current := self.stores.pods.get(key(pod))) is not None:
                    self._take_in(current, was_shown=True, was_bound=True)
                yield

    def open(self) -> None:
        """Begin to decide: the initial state is known. The pods that wait already come in a few per tick."""
        list(self.count_holdings())
        list(self.check_rules())
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
        claim = new or old
        if claim is not None and not (old and new and _mountability(old) == _mountability(new)):
            self._check_unbound_pods(self.stores.pods.by("volume", key(claim)))

    def on_volume(self, old: Volume | None, new: Volume | None) -> None:
        if volume := new or old:
            claim = volume.spec.claim_ref
            self._check_unbound_pods(self.stores.pods.by("volume", f"{claim.namespace}/{claim.name}"))
            self.volume_plans.on_volume(old, new)

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        """Check the pods whose rules select namespaces by label."""
        is_same = old is not None and new is not None and old.metadata.labels == new.metadata.labels
        if not is_same and self._surroundings.is_open:
            self._check_selecting_pods()

    def _check_selecting_pods(self) -> None:
        pods = self._surroundings.selecting_namespaces()
        self._withdraw(pods)
        for pod in sorted(pods, key=lambda each: not each.spec.node_name):
            self._take_in(pod, was_shown=True, was_bound=True)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.status.phase in translate.TERMINAL:
            if pod := new or old:
                self._pod_ended(pod)
            return
        if new.spec.scheduler_name == self._config.scheduler_name:
            self.our_pods[new.metadata.uid] = new
        if old is None or not _is_same_holding(old, new):
            self._take_in(new, was_shown=old is not None, was_bound=bool(old and old.spec.node_name))

    def _take_in(self, pod: Pod, *, was_shown: bool, was_bound: bool) -> None:
        if pod.spec.node_name:
            kept_away = self._surroundings.observe(pod)
            self._withdraw(kept_away)  # they ask again below, when the pod counts where it is
            self._pod_bound(pod, was_shown=was_shown, was_bound=was_bound)
            self._check_unbound_pods(kept_away)
        elif pod.metadata.uid in self.our_pods:
            self._check_unbound(pod)

    # --- results that the executor and the releaser report -------------------------------------------------

    def done(self, outcome: Outcome) -> None:
        """Take in the outcome of a bind job."""
        job = outcome.job
        uid = job.pod.metadata.uid
        self.binding.pop(uid, None)
        self.volume_plans.forget(uid)
        if isinstance(outcome, Bound):
            self._placed(job)
            return
        for lease in outcome.found:
            self.lease_index.add_found(lease)
        self.lease_index.recount(uid)
        pod = self.our_pods.get(uid)
        if pod is not None and pod.spec.node_name and uid not in self.holdings:
            self._count_bound(pod, by_annotation=not self._config.uses_leases)
        if uid not in self.holdings:  # if another scheduler has bound it meanwhile, it keeps its claim
            self._free_claim(uid)
        self._feed(events.PlaceFailed(uid))
        if pod is not None and not pod.spec.node_name:
            self._check_unbound(pod)
            self._tell_failure(outcome)
        self._surroundings.volumes_changed(job.pod)
        self.volume_plans.failed(job)

    def _tell_failure(self, failed: Failed) -> None:
        """Report a failure that will repeat, if the pod is tried again. Most others are races, of which a
        single one says nothing."""
        uid = failed.job.pod.metadata.uid
        self._failures[uid] = self._failures.get(uid, 0) + 1
        is_tried_again = uid in self._clearing or self.engine.waiting(uid) is not None
        if is_tried_again and (failed.is_permanent or self._failures[uid] >= TOLD_AFTER):
            self.pending.refuse(uid, f"could not be bound to {failed.job.placement.node}: {failed.why}")

    def _placed(self, job: BindJob) -> None:
        uid, placement = job.pod.metadata.uid, job.placement
        self._failures.pop(uid, None)
        if uid in self.our_pods:
            self.pending.clear_reason(uid)
            self.holdings.record(uid, placement)
        else:  # it ended before the bind was answered
            self.holdings.keep_ended(uid, placement, self.lease_index.devices(uid, placement.node))
            self._executor.release(PodEnded(job.pod, placement))
        self.lease_index.recount(uid)
        self._feed(events.Placed(uid))
        pod = self.our_pods.get(uid)
        if pod is not None and pod.spec.node_name and not self._is_bound_as(placement, pod):
            self._count_bound(pod, by_annotation=not self._config.uses_leases)  # it changed meanwhile

    def freed(self, uid: str) -> None:
        """Count the devices and the claim of an ended pod as free."""
        self.holdings.freed(uid)
        self.lease_index.forget_lost(uid)
        self._free_claim(uid)

    def cleared(self, uid: str) -> None:
        """Queue the pod again: its leftover leases are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self.our_pods.get(uid)) is not None and not pod.spec.node_name:
            self._check_unbound(pod, cleared=True)

    def tick(self) -> None:
        self._feed(events.Tick())
        self.pending.enter_some()
        self.volume_plans.check_some()

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
            self._surroundings.withdraw(pod)
        elif self._clears_leftovers and not cleared and uid in self.lease_index:
            self._clearing.add(uid)
            self.pending.withdraw(uid)
            self._executor.clear_leases(pod)
        else:
            self._queue(pod)

    @property
    def _clears_leftovers(self) -> bool:
        return self._config.clears_leftovers or not self._opened

    def _queue(self, pod: Pod) -> None:
        match self._request_of(pod):
            case Request() as request:
                kept_away = self._surroundings.observe(pod) if self._surroundings.counts_waiting else []
                self._withdraw(kept_away)  # they ask again below, when the pod counts where it is
                self.pending.add(RequestAdded(request, self._clock() - self._waited_s(pod)))
                self._check_unbound_pods(kept_away)
            case Unschedulable(why):
                self.pending.withdraw(pod.metadata.uid)
                self.pending.refuse(pod.metadata.uid, why)
                self._surroundings.withdraw(pod)

    def _request_of(self, pod: Pod) -> Request | Unschedulable:
        if self._config.requires_env and (why := deviceenv.unconfined(pod.spec)):
            return Unschedulable(why)
        user = self._claim_users.user_of(f"{pod.metadata.namespace}/{claims.claim_name(pod)}")
        try:
            others = self._surroundings.others(pod, user)
            return pod_request.request_of(pod, self.stores.claim_of(pod), self.stores, others)
        except Exception as error:  # the edge of one pod: its owner learns of it, the others go on
            log.exception("pod could not be judged", pod=key(pod))
            return Unschedulable(f"could not be judged: {claims.shortened(repr(error))}")

    # --- bound and ended pods ------------------------------------------------------------------------------

    def _pod_bound(self, pod: Pod, *, was_shown: bool, was_bound: bool) -> None:
        uid, known = pod.metadata.uid, self.holdings.get(pod.metadata.uid)
        self.pending.clear_reason(uid)
        self._failures.pop(uid, None)
        if known is not None and not was_bound and self._is_bound_as(known, pod):
            return  # we have just bound it so
        job = self.binding.get(uid)
        if known is None and job is not None and job.placement.node == pod.spec.node_name:
            return  # most likely by this job, which counts its devices until `done` has its outcome
        # Without leases: a pod that comes with a node was not bound by us, unless that was before we started.
        by_annotation = not self._config.uses_leases and (was_shown or not self._opened)
        self._count_bound(pod, by_annotation=by_annotation)

    def _count_bound(self, pod: Pod, *, by_annotation: bool) -> None:
        if pod.metadata.uid not in self.holdings:
            # Before the engine gets the event: it may place another pod at once.
            self._claim_users.assign(pod)
        self.holdings.add(pod, by_annotation=by_annotation)
        self.lease_index.recount(pod.metadata.uid)
        self._surroundings.volumes_changed(pod)

    def _is_bound_as(self, known: Placement, pod: Pod) -> bool:
        return known.node == pod.spec.node_name and known.neighbour == self._surroundings.neighbour(pod)

    def _pod_ended(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.our_pods.pop(uid, None)
        self._failures.pop(uid, None)
        placement = self.holdings.remove(uid)
        if placement is None:
            self.pending.withdraw(uid)
        self._surroundings.ended(pod)
        self.lease_index.recount(uid)  # before the pod's own count goes: its lease counts from here on
        if placement is not None:
            self.holdings.keep_ended(uid, placement, self.lease_index.devices(uid, placement.node))
            self.pending.withdraw(uid)
            self.nodes.remove_plugin_pod(uid, placement.node)
            self.nodes.recount(uid, placement.node)
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
        """Return what a pod counts apart from its leases: what it is bound to, or what the engine assumes."""
        if (bound := self.holdings.get(uid)) is not None:
            return bound
        job = self.binding.get(uid)
        return job.placement if job else None

    def _feed(self, *all_of: Event) -> None:
        """Send events to the engine, all before it decides, and perform the actions that it returns."""
        if (initial := self._initial) is not None:
            all_of = tuple(each for each in all_of if not initial.keep(each))
        if self._closed or not all_of:
            return
        now = self._clock()
        engine = self.engine
        actions = engine.handle(all_of[0], now) if len(all_of) == 1 else engine.handle_all(all_of, now)
        # Places first: the engine has set their devices aside, and a report that fails must not lose them.
        for action in actions:
            if isinstance(action, events.Place):
                self._place(action)
        has_more = self.pending.has_entering or self.volume_plans.has_more
        self._executor.wake_at(now if has_more else self.engine.deadline(now))
        for action in actions:
            if isinstance(action, events.Refuse):
                self.pending.refuse(action.request.key, action.refusal.message)

    def _place(self, action: events.Place) -> None:
        uid = action.request.key
        pod, devices = self.our_pods[uid], self.engine.cluster.devices(action.placement)
        job = BindJob(pod, action.placement, devices, self.stores.claim_of(pod))
        volumes = self.volume_plans.make(pod, action.placement.node)
        if isinstance(volumes, VolumePlan):
            job = replace(job, volumes=volumes)
            self.engine.takes_long(uid)
        self.binding[uid] = job
        if not self._claim_users.assign(pod):
            self._executor.abandon(job, f"GpuClaim {claims.claim_name(pod)} serves another pod by now")
        elif conflict := self._surroundings.volume_conflict(pod):
            self._executor.abandon(job, conflict)
        elif isinstance(volumes, NotReady):
            self._executor.abandon(job, volumes.why)
        else:
            self._executor.bind(job)


def _is_same_holding(old: Pod, new: Pod) -> bool:
    """Return True if a bound pod holds the same as before, and other pods' rules see the same of it. What its
    annotations say changes no holding."""
    return (
        bool(new.spec.node_name)
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )


def _usability(claim: GpuClaim) -> tuple[str, str, bool]:
    """Return the part of a claim that decides which pods may use it."""
    meta = claim.metadata
    return meta.uid, claims.reserved_for(claim), bool(meta.deletion_timestamp)


def _mountability(claim: VolumeClaim) -> tuple[object, ...]:
    """Return the part of a volume claim that decides which pods may mount it, and where."""
    for_node, is_leaving = first_consumer.selected_node(claim), bool(claim.metadata.deletion_timestamp)
    return claim.spec, first_consumer.class_name(claim), claim.status.phase, for_node, is_leaving
