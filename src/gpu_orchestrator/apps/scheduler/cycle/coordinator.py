"""Turn watch events into events of the engine, and the engine's actions into jobs for the executor.

Makes no network calls: `scheduler` connects the watches, `executor` performs the jobs.

Each of our pods is in one of these states:
    pending   request queued, or refused with a reason       binding  a bind job is running
    clearing  leases of an earlier try are being released    bound    by us or by another scheduler
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

from gpu_orchestrator.api import claims, first_consumer, gangs, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Namespace, Pod, VolumeClaim
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.api.volumes import NotReady, Volume
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.holdings import Holdings
from gpu_orchestrator.apps.scheduler.accounting.lease_index import LeaseIndex
from gpu_orchestrator.apps.scheduler.accounting.nominations import Nominations
from gpu_orchestrator.apps.scheduler.accounting.pod_queues import PodQueues
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Executor, Outcome
from gpu_orchestrator.apps.scheduler.cycle import bound_pods
from gpu_orchestrator.apps.scheduler.cycle.bound_pods import BoundPods
from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from gpu_orchestrator.apps.scheduler.cycle.initial_holdings import InitialHoldings
from gpu_orchestrator.apps.scheduler.cycle.pending import PendingPods
from gpu_orchestrator.apps.scheduler.cycle.queue_changes import QueueChanges
from gpu_orchestrator.apps.scheduler.cycle.rechecks import Rechecks
from gpu_orchestrator.apps.scheduler.cycle.shared import CoordinatorConfig, Shared
from gpu_orchestrator.apps.scheduler.cycle.surroundings import Surroundings
from gpu_orchestrator.apps.scheduler.cycle.unbound_pods import UnboundPods
from gpu_orchestrator.apps.scheduler.cycle.volume_plans import VolumePlans
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.pod_rules import PodTerm
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event

PodState = Literal["bound", "binding", "pending", "unknown"]


class Coordinator:
    """`waited_s` returns how long ago a pod was created, `left_s` how long a bound pod still runs at most, if
    it says so; `is_agent_live` whether a node's agent is."""

    def __init__(
        self,
        engine: Engine,
        stores: Stores,
        executor: Executor,
        config: CoordinatorConfig,
        *,
        clock: Callable[[], float],
        waited_s: Callable[[Pod], float] = lambda pod: 0.0,
        left_s: Callable[[Pod], float | None] = lambda pod: None,
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
            queue_of=lambda uid: self.queues.of_bound(uid),
        )
        self.queues = PodQueues(stores.namespaces, self.our_pods, recorded=self.lease_index.recorded)
        self.holdings = Holdings(
            self._feed,
            stores,
            leased=self.lease_index.devices,
            has_lease=self.lease_index.__contains__,
            is_live=is_agent_live,
            guarded=config.guarded_annotations,
            queue_of=self.queues.of_bound,
            ends_at=lambda pod: None if (left := left_s(pod)) is None else clock() + left,
        )
        self.nodes = self.holdings.nodes
        self.nominations = Nominations(self._feed, self.nodes, config.scheduler_name)
        self._surroundings = Surroundings(stores, self.our_pods, self._check_unbound_pods, self._is_placed)
        self._rechecks = Rechecks(
            stores.pods, self._check_again, clock=clock, wake=lambda: executor.wake_at(clock())
        )
        self.volume_plans = VolumePlans(
            stores, self._check_unbound_pods, wake=lambda: executor.wake_at(clock())
        )
        self._executor, self._config, self._clock = executor, config, clock
        self._claim_users = ClaimUsers()
        self._shared = Shared(
            config,
            stores,
            executor,
            self.our_pods,
            self.binding,
            self.pending,
            self.holdings,
            self.lease_index,
            self._surroundings,
            self._claim_users,
            self.queues,
        )
        self.queue_changes = QueueChanges(self._shared, self._feed, self._check_unbound_pods)
        self._bound = BoundPods(
            self._shared, self._feed, self._check_unbound_pods, requeue=self.queue_changes.requeue
        )
        self._unbound = UnboundPods(
            self._shared, self._feed, engine, self._rechecks, since=lambda pod: clock() - waited_s(pod)
        )
        self._initial: InitialHoldings | None = InitialHoldings()
        self._closed = False

    def count_holdings(self) -> Iterator[None]:
        """Count what is held in the initial state, step by step. Afterwards every change counts at once."""
        if self._initial is not None:
            yield from self._initial.send(lambda batch: self.engine.handle_all(batch, self._clock()))
            self._initial = None

    def check_rules(self) -> Iterator[None]:
        """Check the pods that wait against the rules of all pods, step by step. Afterwards every rule counts
        at once."""
        if not self._shared.is_opened:
            self._shared.is_opened = True
            yield from self._surroundings.opening(self._unbound.check)
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

    def on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Check the pods of a PodGroup that came, went or says something else."""
        if (group := new or old) is not None and not (old and new and old.spec == new.spec):
            pods = self.stores.pods.by("group", key(group))
            if old is None:
                self._bound.found_group(pods)
            self._check_unbound_pods(pods)

    def on_pod_groups_switched(self) -> None:
        """Check the pods with PodGroups: these can be read now, or no longer."""
        self._check_unbound_pods([each for each in self.our_pods.values() if gangs.group_name(each)])

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        """Check the pods whose rules select namespaces by label."""
        is_same = old is not None and new is not None and old.metadata.labels == new.metadata.labels
        if not is_same and self._surroundings.is_open:
            self._check_selecting_pods()

    def _check_selecting_pods(self) -> None:
        pods = self._surroundings.selecting_namespaces()
        self._unbound.withdraw(pods)
        self._rechecks.add(sorted(pods, key=lambda each: not each.spec.node_name))

    def _check_again(self, pod: Pod) -> None:
        self._take_in(pod, was_shown=True, was_bound=True)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or new.status.phase in translate.TERMINAL:
            if pod := new or old:
                self._bound.ended(pod)
            if new is not None and new.status.phase == translate.SUCCEEDED:
                self._bound.has_succeeded(new)
            return
        if new.spec.scheduler_name == self._config.scheduler_name:
            self.our_pods[new.metadata.uid] = new
        if old is None or not bound_pods.is_same(old, new):
            self._take_in(new, was_shown=old is not None, was_bound=bool(old and old.spec.node_name))

    def _take_in(self, pod: Pod, *, was_shown: bool, was_bound: bool) -> None:
        if pod.spec.node_name:
            kept_away = self._surroundings.observe(pod)
            self._unbound.withdraw(kept_away)  # they ask again below, when the pod counts where it is
            self._bound.observe(pod, was_shown=was_shown, was_bound=was_bound)
            self._rechecks.add(kept_away)
        elif pod.metadata.uid in self.our_pods:
            self._unbound.check(pod)

    def _check_unbound_pods(self, pods: Iterable[Pod]) -> None:
        self._unbound.check_soon(pods)

    # --- results that the executor and the releaser report -------------------------------------------------

    def done(self, outcome: Outcome) -> None:
        """Take in the outcome of a bind job."""
        job = outcome.job
        uid = job.pod.metadata.uid
        self.binding.pop(uid, None)
        self.volume_plans.forget(uid)
        if isinstance(outcome, Bound):
            self._bound.placed(job)
            return
        for lease in outcome.found:
            self.lease_index.add_found(lease)
        self._bound.not_placed(uid)
        freed = [] if uid in self.holdings else self._surroundings.leave_volumes(job.pod)
        self._feed(events.PlaceFailed(uid))
        self._unbound.not_placed(outcome)
        self._surroundings.check_users(freed)
        self.volume_plans.failed(job)

    def freed(self, uid: str) -> None:
        """Count the devices and the claim of an ended pod as free."""
        self.holdings.freed(uid)
        self.lease_index.forget_lost(uid)
        self._bound.free_claim(uid)

    def cleared(self, uid: str) -> None:
        """Queue the pod again: its leftover leases are gone, or are not ours to clear."""
        self._unbound.cleared(uid)

    def recheck_capacity(self) -> None:
        """Check pods again that request less capacity than their claims count for beside these nodes."""
        self._unbound.recheck_capacity()

    def tick(self) -> None:
        self._feed(events.Tick())
        self.pending.enter_some()
        self._rechecks.check_some()
        self.volume_plans.check_some()

    # --- queries -------------------------------------------------------------------------------------------

    def state_of(self, uid: str) -> PodState:
        """Return the state of the pod with this UID."""
        if uid in self.binding:
            return "binding"
        if uid in self.holdings:
            return "bound"  # also if another scheduler bound it
        return "pending" if uid in self.our_pods else "unknown"

    def shunned_by(self, pod: Pod) -> tuple[PodTerm, ...]:
        """Return the anti-affinity of pods that keeps this one away from them."""
        return self._surroundings.shunned_by(pod)

    def _is_placed(self, uid: str) -> bool:
        return uid in self.binding or uid in self.holdings

    def feed(self, *all_of: Event) -> None:
        """Send events to the engine that a controller knows of."""
        self._feed(*all_of)

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
            all_of = tuple([each for each in all_of if not initial.keep(each)])
        if self._closed or not all_of:
            return
        now = self._clock()
        engine = self.engine
        actions = engine.handle(all_of[0], now) if len(all_of) == 1 else engine.handle_all(all_of, now)
        # Places first: the engine has set their devices aside, and a report that fails must not lose them.
        for action in actions:
            if isinstance(action, events.Place):
                self._place(action)
            elif isinstance(action, events.PlaceGang):
                self._place_gang(action)
        is_busy = self.pending.has_entering or self._rechecks or self.volume_plans.has_more
        self._executor.wake_at(now if is_busy else self.engine.deadline(now))
        for action in actions:
            if isinstance(action, events.Refuse):
                self.pending.refuse(action.request.key, action.refusal.message)

    def _place(self, action: events.Place) -> None:
        job = self._job(action)
        if objection := self._objection(job, action.request):
            self._executor.abandon(job, objection)
        else:
            self._surroundings.use_volumes(job.pod)
            self._executor.bind(job)

    def _place_gang(self, action: events.PlaceGang) -> None:
        """Let all members be bound, or none if one of them cannot be."""
        jobs = [self._job(each) for each in action.places]
        found = (self._objection(job, each.request) for job, each in zip(jobs, action.places, strict=True))
        said = [f"{key(job.pod)}: {why}" for job, why in zip(jobs, found, strict=True) if why]
        for job in jobs:
            if said:
                self._executor.abandon(job, f"gang {action.gang}: {said[0]}")
            else:
                self.engine.takes_long(job.pod.metadata.uid)  # or nothing else would be decided meanwhile
                self._surroundings.use_volumes(job.pod)
        if not said:
            self._executor.bind_gang(action.gang, jobs)

    def _job(self, action: events.Place) -> BindJob:
        uid = action.request.key
        pod, devices = self.our_pods[uid], self.engine.cluster.devices(action.placement)
        claim, queue = self.stores.claim_of(pod), action.request.queue
        job = BindJob(pod, action.placement, devices, claim, queue=queue, in_between=action.in_between)
        volumes = self.volume_plans.make(pod, action.placement.node)
        if isinstance(volumes, VolumePlan):
            job = replace(job, volumes=volumes)
        elif isinstance(volumes, NotReady):
            job = replace(job, unready=volumes.why)
        if job.volumes or claims.is_held_by_mps(pod, job.claim.spec if job.claim else None):
            self.engine.takes_long(uid)
        self.binding[uid] = job
        return job

    def _objection(self, job: BindJob, decided: Request) -> str:
        """Return why the pod cannot be bound after all; empty if it can. Its claim is assigned to it."""
        pod = job.pod
        if objection := self._unbound.objection(pod, decided):
            return objection
        if not self._claim_users.assign(pod):
            return f"GpuClaim {claims.claim_name(pod)} serves another pod by now"
        return self._surroundings.volume_conflict(pod) or job.unready


def _usability(claim: GpuClaim) -> tuple[str, str, bool]:
    """Return the part of a claim that decides which pods may use it."""
    meta = claim.metadata
    return meta.uid, claims.reserved_for(claim), bool(meta.deletion_timestamp)


def _mountability(claim: VolumeClaim) -> tuple[object, ...]:
    """Return the part of a volume claim that decides which pods may mount it, and where."""
    for_node, is_leaving = first_consumer.selected_node(claim), bool(claim.metadata.deletion_timestamp)
    return claim.spec, first_consumer.class_name(claim), claim.status.phase, for_node, is_leaving
