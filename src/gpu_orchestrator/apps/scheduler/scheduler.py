"""Build and connect the parts for one term of leadership: the watches feed the coordinator, and the executor
performs what it decides."""

import asyncio
import gc
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.retry import BRIEFLY_S
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import podcapacity, timestamps
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.actions import BindJob
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.binding.volume_binder import VolumeBinder, Written
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController
from gpu_orchestrator.apps.scheduler.controllers.gang_marks import GangMarker
from gpu_orchestrator.apps.scheduler.controllers.gangs import GangController
from gpu_orchestrator.apps.scheduler.controllers.health import HealthConfig, HealthController
from gpu_orchestrator.apps.scheduler.controllers.node_capacity import NodeCapacity
from gpu_orchestrator.apps.scheduler.controllers.overruns import OverrunController
from gpu_orchestrator.apps.scheduler.controllers.pod_groups import PodGroupController
from gpu_orchestrator.apps.scheduler.controllers.preemption import PreemptionController
from gpu_orchestrator.apps.scheduler.controllers.queue_status import QueueSource, QueueStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser, has_stopped
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.controllers.sweep import Sweeper, SweeperDeps
from gpu_orchestrator.apps.scheduler.cycle import reserving
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.shared import CoordinatorConfig
from gpu_orchestrator.apps.scheduler.executor import KubeExecutor, waited_s
from gpu_orchestrator.apps.scheduler.informers import Watches
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry

MAX_DECISIONS = 64
# How many rows of nodes to judge for new shapes before other tasks may run: 10 to 30 ms.
MAX_ROWS = 50_000
# Allocations less deallocations before a garbage collection. Reference counting frees nearly all our objects.
COLLECT_EVERY = 20_000

log = structlog.get_logger()


class Scheduler:
    def __init__(
        self,
        client: Client,
        settings: Settings,
        watches: Watches,
        recorder: Recorder,
        metrics: Metrics,
        *,
        pacer: Pacer,
        registry: Registry,
        rng: Rng,
        may_write: Callable[[], bool],
    ) -> None:
        self._settings, self._watches, self._stopped = settings, watches, asyncio.Event()
        clock, stores = asyncio.get_running_loop().time, watches.stores
        uses_leases = settings.lock == "lease"
        self._written_leases = Overlay(watches.leases)
        leases = DeviceLeases(
            client, settings.device_lease_namespace, self._written_leases, metrics=metrics, now=_now
        )
        used_leases = leases if uses_leases else None
        self._pod_status = PodStatusWriter(client, stores.pods)
        claim_writer = ClaimWriter(client)
        self._volume_binder = VolumeBinder(
            client,
            Written(Overlay(watches.volume_claims), Overlay(watches.volumes)),
            stores.pods,
            stores.nodes,
            wait_s=settings.volume_bind_seconds,
        )
        self._agent_liveness = AgentLiveness(clock, lambda: datetime.now(UTC), changed=self._on_agent)
        self._mps_gate = MpsGate(stores.node_statuses, self._agent_liveness.is_live)
        binder = Binder(
            client,
            self._pod_status,
            used_leases,
            claim_writer,
            volume_binder=self._volume_binder,
            mps_gate=self._mps_gate,
            reserves_claims=not settings.leader_elect,
            may_write=may_write,
            now=_now,
            barred=lambda node: self.coordinator.nodes.barred(node),
        )
        self._reporter = Reporter(
            self._pod_status,
            recorder,
            pacer,
            self._pending_pod,
            self._refused,
            warns_of_env=settings.require_device_env == "Warn",
            uncounted=self._uncounted if settings.require_capacity == "Warn" else lambda job: "",
        )
        self._executor = KubeExecutor(
            client, self._pod_status, used_leases, binder, self._reporter, metrics=metrics, pacer=pacer
        )
        engine = Engine(
            registry.policy_of,
            rng,
            max_in_flight=settings.max_in_flight,
            max_decisions=MAX_DECISIONS,
            max_rows=MAX_ROWS,
            reservations=reserving.rules(settings, lambda: self.coordinator.our_pods, clock),
        )
        enforced_only = settings.backfill == "Enforced"
        self.coordinator = Coordinator(
            engine,
            stores,
            self._executor,
            CoordinatorConfig(
                settings.scheduler_name,
                clears_leftovers=settings.leader_elect,
                uses_leases=uses_leases,
                max_waiting_shapes=settings.max_waiting_shapes,
                requires_env=settings.require_device_env == "Refuse",
                requires_capacity=settings.require_capacity == "Refuse",
                guarded_annotations=settings.guarded_annotations,
                enforced_run_times=enforced_only,
            ),
            clock=clock,
            waited_s=waited_s,
            left_s=partial(reserving.left_s, enforced_only=enforced_only),
            is_agent_live=self._agent_liveness.may_live,
        )
        self._releaser = Releaser(
            used_leases,
            stores.node_statuses,
            self._agent_liveness,
            leases_of=self.coordinator.lease_index.of,
            has_stopped=partial(has_stopped, client.with_limits(patience_s=BRIEFLY_S)),
            freed=self._freed,
            clock=clock,
            wait_s=settings.release_seconds,
            agent_s=settings.agent_seconds,
        )
        self._executor.attach(self.coordinator, self._releaser)
        self._claim_controller = ClaimController(
            ClaimWriter(client.with_limits(patience_s=BRIEFLY_S)),
            self.coordinator,
            self._releaser,
            metrics=metrics,
            pacer=pacer,
            now=_now,
            report=self._reporter.report_claim,
        )
        self._node_capacity = NodeCapacity(
            client.with_limits(patience_s=BRIEFLY_S),
            stores.nodes,
            lambda: engine.cluster,
            self._agent_liveness.is_live,
            metrics=metrics,
            pacer=pacer,
            clock=clock,
        )
        self._health = HealthController(
            client.with_limits(patience_s=BRIEFLY_S),
            self.coordinator,
            claim_writer,
            self._reporter,
            HealthConfig(settings.on_unhealthy, self._agent_liveness.is_live, may_write, _now, clock),
            metrics=metrics,
        )
        self._pod_groups = PodGroupController(
            client.with_limits(patience_s=BRIEFLY_S),
            stores,
            pacer,
            scheduler_name=settings.scheduler_name,
            reason=self._why,
            now=lambda: timestamps.seconds(datetime.now(UTC)),
        )
        self._gangs = GangController(
            client.with_limits(patience_s=BRIEFLY_S),
            self.coordinator,
            self._reporter,
            metrics=metrics,
            may_write=may_write,
            clock=clock,
            wait_s=settings.gang_seconds,
            evicts=self._pod_groups.starts_over,
        )
        self._overruns = OverrunController(
            client.with_limits(patience_s=BRIEFLY_S),
            self.coordinator,
            self._reporter,
            metrics=metrics,
            may_write=may_write,
            evicts=settings.on_overrun == "Evict",
        )
        self._gang_marker = GangMarker(
            client.with_limits(patience_s=BRIEFLY_S),
            self.coordinator,
            pacer,
            metrics=metrics,
            may_write=may_write,
            now=lambda: timestamps.seconds(datetime.now(UTC)),
        )
        self._queue_status = QueueStatusWriter(
            client.with_limits(patience_s=BRIEFLY_S),
            stores.gpu_queues,
            QueueSource(engine, self.coordinator.queues),
            pacer,
            metrics=metrics,
            may_write=may_write,
            now=lambda: timestamps.seconds(datetime.now(UTC)),
            clock=clock,
        )
        self._preemption = PreemptionController(
            client.with_limits(patience_s=BRIEFLY_S),
            self.coordinator,
            self._pod_status,
            self._reporter,
            metrics=metrics,
            may_write=may_write,
            clock=clock,
            rng=rng,
            evicts=self._pod_groups.preempted,
            ended_since=self._releaser.ended_since,
        )
        self._sweep = Sweeper(
            client,
            used_leases,
            SweeperDeps(self.coordinator, self._claim_controller, self._releaser, self._reporter, metrics),
            clear_leases=self._executor.clear_leases,
            now=_now,
            clock=clock,
            wait_s=settings.release_seconds,
        )
        metrics.watch(engine, self.coordinator.pending.held_back)
        for each in watches.all:
            each.on_failure(lambda: metrics.error("watch"))

    @property
    def watches(self) -> tuple[Watch[Any], ...]:
        return self._watches.all

    async def work(self) -> None:
        """Take in the initial state, then decide until `stop` is called and the running jobs have ended."""
        _freeze_known_objects()
        breath = Breath(asyncio.get_running_loop().time)
        await self._register_handlers(breath)
        await breath.through(self.coordinator.count_holdings())
        await breath.through(self.coordinator.check_rules())
        _freeze_known_objects()
        self.coordinator.open()
        log.info("scheduling", nodes=len(self._watches.stores.nodes), pods=len(self._watches.stores.pods))
        every_s = self._settings.sweep_seconds
        sweeps, capacity = self._sweep.run(every_s), self._node_capacity.run(every_s)
        health, gangs = self._health.run(every_s), self._gangs.run(every_s)
        async with asyncio.TaskGroup() as group:
            runs = (
                self._releaser.run(),
                self._claim_controller.run(),
                self._reporter.run(),
                self._pod_groups.run(),
                self._gang_marker.run(),
                self._queue_status.run(),
                sweeps,
                capacity,
                health,
                gangs,
                self._overruns.run(every_s),
                *([self._preemption.run()] if self._settings.preempts else []),
            )
            loops = [group.create_task(each) for each in runs]
            await self._stopped.wait()
            await self._executor.finish()
            for each in loops:
                each.cancel()

    def stop(self) -> None:
        self._stopped.set()

    async def _register_handlers(self, breath: Breath) -> None:
        """Register in this order: everything held must be known before a pod's request is queued. In a large
        cluster this takes seconds, in which the leader must renew its lease. Handlers that forget our own
        writes, or wake a job that waits, get later changes alone: there are no writes and no jobs yet."""
        watches = self._watches
        await watches.nodes.on_change_in_slices(self.coordinator.nodes.on_node, breath)
        await watches.node_statuses.on_change_in_slices(self.coordinator.nodes.on_node_status, breath)
        await watches.csi_nodes.on_change_in_slices(self.coordinator.nodes.on_csi_node, breath)
        await watches.node_statuses.on_change_in_slices(self._releaser.on_node_status, breath)
        await watches.claims.on_change_in_slices(self.coordinator.on_claim, breath)
        await watches.gpu_queues.on_change_in_slices(self.coordinator.queue_changes.on_queue, breath)
        watches.namespaces.on_later_change(self.coordinator.queue_changes.on_namespace)
        watches.leases.on_later_change(self._written_leases.observe)
        await watches.leases.on_change_in_slices(self._agent_liveness.on_lease, breath)
        await watches.leases.on_change_in_slices(self.coordinator.lease_index.on_lease, breath)
        watches.pod_groups.on_later_change(self.coordinator.on_pod_group)
        watches.pod_groups.on_switch(self.coordinator.on_pod_groups_switched)
        watches.pods.on_later_change(self._pod_status.on_pod)
        await watches.pods.on_change_in_slices(self.coordinator.on_pod, breath)
        await watches.pods.on_change_in_slices(self.coordinator.nominations.on_pod, breath)
        await watches.volumes.on_change_in_slices(self.coordinator.on_volume, breath)
        await watches.volume_claims.on_change_in_slices(self.coordinator.on_volume_claim, breath)
        await watches.storage_classes.on_change_in_slices(
            self.coordinator.volume_plans.on_storage_class, breath
        )
        watches.volumes.on_later_change(self._volume_binder.on_volume)
        watches.volume_claims.on_later_change(self._volume_binder.on_volume_claim)
        watches.pods.on_later_change(self._volume_binder.on_pod)
        watches.nodes.on_later_change(self._volume_binder.on_node)
        await watches.namespaces.on_change_in_slices(self.coordinator.on_namespace, breath)
        await watches.pods.on_change_in_slices(self._pod_groups.on_pod, breath)
        await watches.pod_groups.on_change_in_slices(self._pod_groups.on_pod_group, breath)
        await watches.pods.on_change_in_slices(self._claim_controller.on_pod, breath)
        watches.leases.on_later_change(self._claim_controller.on_lease)
        await watches.claims.on_change_in_slices(self._claim_controller.on_claim, breath)
        watches.nodes.on_later_change(self._node_capacity.on_node)
        watches.node_statuses.on_later_change(self._node_capacity.on_node_status)
        watches.node_statuses.on_later_change(self._health.on_node_status)
        watches.node_statuses.on_later_change(self._mps_gate.on_node_status)

    def _on_agent(self, node: str) -> None:
        self.coordinator.nodes.on_agent(node)
        self._releaser.on_agent(node)
        self._mps_gate.on_agent(node)

    def _freed(self, uid: str) -> None:
        self.coordinator.freed(uid)
        self._claim_controller.freed(uid)

    def _uncounted(self, job: BindJob) -> str:
        largest_mib = self.coordinator.engine.cluster.largest_mib
        return podcapacity.uncounted(job.pod, job.claim, job.placement.resources, largest_mib)

    def _refused(self, pod: Pod) -> None:
        self._claim_controller.refused(pod)
        self._pod_groups.refused(pod)

    def _why(self, uid: str) -> tuple[str, bool]:
        """Return why a pod waits, and whether that is an error: a strategy that failed, as a rule."""
        refusal = self.coordinator.engine.why(uid)
        return self.coordinator.pending.reason(uid), bool(refusal and refusal.error)

    def _pending_pod(self, uid: str) -> tuple[Pod, str] | None:
        why, pod = self.coordinator.pending.reason(uid), self.coordinator.our_pods.get(uid)
        return (pod, why) if pod is not None and why and self.coordinator.state_of(uid) == "pending" else None


def _freeze_known_objects() -> None:
    """Exclude the nodes and pods of the initial state from garbage collection: they live long, and a scan of
    all of them would delay every bind while it runs. For the same reason nothing is collected before: what is
    garbage now stays, which is little, because reference counting frees nearly all."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)


def _now() -> str:
    return timestamps.micro_time(datetime.now(UTC))
