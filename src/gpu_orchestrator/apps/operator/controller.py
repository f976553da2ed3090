"""The control loop: watches fill a queue of workload keys, and each pass takes one from it to a plan.

Made by `run`. Calls `reconcile` for the plan and `apply` to carry it out.

watches ──► capacity (what is free) ──found──┐
   └──────► queue of workload keys ◄─────────┴── again_at
               └──► snapshot ──► reconcile ──► plan ──► apply ──► its writes are kept for the next snapshot
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import NotFound, TooLarge
from gpu_orchestrator.adapters.kube.events import Recorder, about
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.retry import BRIEFLY_S
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.pacer import CALM, Pacer
from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator import apply
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.observe.capacity import Capacity
from gpu_orchestrator.apps.operator.observe.snapshot_reader import NO_DEFAULTS, Defaults, SnapshotReader
from gpu_orchestrator.apps.operator.observe.watches import watch
from gpu_orchestrator.apps.operator.planning import place, retries, status
from gpu_orchestrator.apps.operator.planning.plan import Plan
from gpu_orchestrator.apps.operator.planning.reconcile import reconcile
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.policies.registry import Registry

WORKERS = 32
DEFER_S = 60.0
"""How long adding a finalizer may wait for a lull. Until then owner references clean up after a deletion."""

log = structlog.get_logger()


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the controller works with. The defaults are those of a real process."""

    client: Client
    recorder: Recorder
    metrics: Metrics
    pacer: Pacer
    registry: Registry = field(default_factory=Registry)
    rng: Rng = field(default_factory=random.SystemRandom)
    now: Callable[[], datetime] = utc_now


class Controller:
    """`namespace`: serve only the workloads in it; nodes and pods are counted everywhere."""

    def __init__(self, uses: Dependencies, *, namespace: str = "", defaults: Defaults = NO_DEFAULTS) -> None:
        self._metrics, self._pacer, self._now, self._rng = uses.metrics, uses.pacer, uses.now, uses.rng
        self._recorder, client = uses.recorder, uses.client.with_limits(patience_s=BRIEFLY_S)
        self.queue: WorkQueue[str] = WorkQueue()
        self._watches = watch(uses.client, namespace)
        self.capacity = Capacity(uses.registry, uses.rng, clock=time.monotonic, found=self.queue.add)
        self._reader = reader = SnapshotReader(client, self._watches, uses.registry, defaults)
        self._applier = apply.Applier(
            client, uses.recorder, reader.keep_workload, self._keep_job, reader.keep_deletion
        )
        self._working = self._stopping = False
        self._passes = 0
        self._deferred: dict[str, float] = {}
        self._metrics.expect(retries.CAUSES)
        self._listen()

    def _listen(self) -> None:
        seen = self._watches
        seen.nodes.on_change(self.capacity.see_node)
        seen.pods.on_change(self.capacity.see_pod)
        seen.pods.on_change(self._pod_changed)
        seen.jobs.on_change(self.capacity.see_job)
        seen.jobs.on_change(self._job_changed)
        seen.workloads.on_change(self.capacity.see_workload)
        seen.workloads.on_change(self._metrics.count_phases)
        seen.workloads.on_change(self._workload_changed)

    @property
    def watches(self) -> tuple[Watch[Any], ...]:
        return self._watches.in_order

    async def work(self) -> None:
        """Reconcile until `stop` is called; then finish the passes that have begun."""
        self._working = True
        self._metrics.lead()
        for workload in sorted(self._watches.workloads.store, key=_order):
            self.queue.add(key(workload))
        await self.queue.run(self._pass, workers=WORKERS)

    def stop(self) -> None:
        self._stopping = True
        self.queue.close()

    def _enqueue(self, name: str) -> None:
        """Queue a workload, unless this replica is on standby: when it takes over, it queues all of them."""
        if self._working:
            self.queue.add(name)

    def _workload_changed(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if workload := new or old:
            self._enqueue(key(workload))

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        if (job := new or old) and (name := jobs.workload_of(job)):
            self._enqueue(name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod and (job := self._watches.jobs.store.get(jobs.job_key(pod))):
            self._job_changed(None, job)
        elif pod and (name := pod.metadata.labels.get(names.WORKLOAD)):
            self._enqueue(f"{pod.metadata.namespace}/{name}")  # its Job was deleted first

    def _keep_job(self, job: Job) -> None:
        self._reader.keep_job(job)
        self.capacity.see_job(None, job)

    async def _pass(self, name: str) -> None:
        if self._stopping:
            return
        started, result = time.monotonic(), "error"
        self._busy(1)
        try:
            result = await self._reconcile(name)
        finally:
            self._busy(-1)
            self._metrics.reconcile.labels(result).observe(time.monotonic() - started)

    def _busy(self, step: int) -> None:
        self._passes += step
        to_do = self._passes + len(self.queue)
        self._pacer.set(to_do)
        if to_do < CALM and self._deferred:  # one at a time, so that new work need not wait
            name = next(iter(self._deferred))
            del self._deferred[name]
            self.queue.add(name)

    def _can_defer(self, name: str) -> bool:
        """Return True if the workload may wait (longer) for a lull, and queue it for the end of that wait."""
        now = time.monotonic()
        if now - self._deferred.setdefault(name, now) >= DEFER_S:
            del self._deferred[name]
            return False
        self.queue.add_after(name, DEFER_S)
        return True

    async def _reconcile(self, name: str) -> str:
        now = self._now()
        snapshot = await self._reader.read(name, now)
        if snapshot is None:
            self.capacity.withdraw(name)
            return "gone"
        try:
            return await self._attempt(name, snapshot, now)
        except (apply.Overtaken, NotFound) as error:
            self.queue.retry(name)  # not at once: the watch may not have received the newer object yet
            log.debug("looking again", workload=name, why=str(error))
            return "again"
        except TooLarge as error:
            self._recorder.warning(
                about(GPU_WORKLOADS, snapshot.workload), names.FAILED_SCHEDULING, str(error)
            )
            raise

    async def _attempt(self, name: str, snapshot: WorkloadSnapshot, now: datetime) -> str:
        try:
            with self.capacity.reserve(name, _waits_since(snapshot.workload)) as reservation:
                plan = reconcile(snapshot, now, reservation.ask, self._rng)
                reservation.drop_unused()  # before the writes: other workloads can use the place at once
                result = await self._carry_out(name, snapshot, plan)
                reservation.keep()
                return result
        except apply.JobRefused as error:
            snapshot = self._reader.peek(name) or snapshot  # it may have its finalizer by now
            refused = retries.refused_by_server(
                snapshot, self._now(), self._rng, str(error), for_good=error.for_good
            )
            await self._perform(name, snapshot, refused)
            return "refused"

    async def _carry_out(self, name: str, snapshot: WorkloadSnapshot, plan: Plan) -> str:
        if plan.can_wait and self._pacer.is_busy and self._can_defer(name):
            self._enqueue_at(name, plan.again_at)
            return "later"
        await self._perform(name, snapshot, plan)
        return "idle" if plan.is_empty else "done"

    async def _perform(self, name: str, snapshot: WorkloadSnapshot, plan: Plan) -> None:
        await self._applier.perform(snapshot.workload, plan)
        if plan.shun:
            self._reader.shun(snapshot.workload, plan.shun)
        if plan.failed:
            self._metrics.failed.labels(plan.failed).inc()
        if plan.status is not None:
            self._metrics.count_status(snapshot.workload, plan.status)
            log.info(
                "status written",
                workload=name,
                phase=plan.status.phase,
                node=plan.status.assigned_node,
                devices=plan.status.allocated,
                why=plan.status.message,
            )
        self._enqueue_at(name, plan.again_at)

    def _enqueue_at(self, name: str, at: datetime | None) -> None:
        if at is not None:
            self.queue.add_after(name, max(0.0, (at - self._now()).total_seconds()))


def _waits_since(workload: GPUWorkload) -> float:
    """Return the time that the workload's place in the queue counts from, in Unix seconds: in general its
    creation, or 0 if that is missing."""
    created = timestamps.parse_optional(workload.metadata.creation_timestamp)
    since = status.turn_began(workload.status) or created
    return since.timestamp() if since else 0.0


def _order(workload: GPUWorkload) -> tuple[int, str]:
    """The order after a restart: by priority, then by age."""
    return -place.PRIORITIES[workload.spec.priority], workload.metadata.creation_timestamp
