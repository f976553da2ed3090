"""Brings news to `reconcile` and its plans to `apply`: watches, queue, and the passes between them.

watches ──► capacity (what is free) ──found──┐
   └──────► queue of workload keys ◄──────┴── again_at
               └──► snapshot ──► reconcile ──► plan ──► apply ──► our own writes, seen at once
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import NotFound
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.watch import Watch
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.lull import CALM, Lull
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator import apply, moments
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.observe.capacity import Capacity
from gpu_orchestrator.apps.operator.observe.snapshot_reader import SnapshotReader
from gpu_orchestrator.apps.operator.observe.watches import watch
from gpu_orchestrator.apps.operator.planning import place, retries
from gpu_orchestrator.apps.operator.planning.plan import Plan
from gpu_orchestrator.apps.operator.planning.reconcile import reconcile
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.policies.registry import Registry

WORKERS = 32
LEISURE_S = 60.0
"""How long a finalizer may wait for a lull. Meanwhile Kubernetes cleans up what is deleted."""

log = structlog.get_logger()


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the controller works with. The defaults are those of a real process."""

    client: Client
    recorder: Recorder
    metrics: Metrics
    lull: Lull
    registry: Registry = field(default_factory=Registry)
    rng: Rng = field(default_factory=random.SystemRandom)
    now: Callable[[], datetime] = utc_now


class Controller:
    """`namespace`: serve only workloads there; nodes and pods are counted everywhere. `claims_by_default`:
    the gpu-scheduler places also those workloads that have no claim."""

    def __init__(self, uses: Dependencies, *, namespace: str = "", claims_by_default: bool = False) -> None:
        self._metrics, self._lull, self._now, self._rng = uses.metrics, uses.lull, uses.now, uses.rng
        self.queue: WorkQueue[str] = WorkQueue()
        self._watches = watch(uses.client, namespace)
        self.capacity = Capacity(uses.registry, uses.rng, clock=time.monotonic, found=self.queue.add)
        self._reader = reader = SnapshotReader(uses.client, self._watches, claims_by_default)
        self._hands = apply.Hands(
            uses.client, uses.recorder, reader.keep_workload, self._keep_job, reader.keep_deletion
        )
        self._working = self._stopping = False
        self._in_hand = 0
        self._at_leisure: dict[str, float] = {}
        self._listen()

    def _listen(self) -> None:
        seen = self._watches
        seen.nodes.on_change(self.capacity.see_node)
        seen.pods.on_change(self.capacity.see_pod)
        seen.pods.on_change(self._pod_changed)
        seen.jobs.on_change(self.capacity.see_job)
        seen.jobs.on_change(self._job_changed)
        seen.workloads.on_change(self._metrics.count_phases)
        seen.workloads.on_change(self._workload_changed)

    @property
    def watches(self) -> tuple[Watch[Any], ...]:
        return self._watches.in_order

    async def work(self) -> None:
        """Reconcile until `stop` is called; then finish what is in hand."""
        self._working = True
        for workload in sorted(self._watches.workloads.store, key=_order):
            self.queue.add(key(workload))
        await self.queue.run(self._pass, workers=WORKERS)

    def stop(self) -> None:
        self._stopping = True
        self.queue.close()

    def _look_at(self, name: str) -> None:
        """A standby looks at nothing; when it takes over, it begins with those that come first."""
        if self._working:
            self.queue.add(name)

    def _workload_changed(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if workload := new or old:
            self._look_at(key(workload))

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        if (job := new or old) and (name := jobs.workload_of(job)):
            self._look_at(name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod and (job := self._watches.jobs.store.get(jobs.job_key(pod))):
            self._job_changed(None, job)
        elif pod and (name := pod.metadata.labels.get(names.WORKLOAD)):
            self._look_at(f"{pod.metadata.namespace}/{name}")  # its Job was deleted before it

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
        self._in_hand += step
        to_do = self._in_hand + len(self.queue)
        self._lull.set(to_do)
        if to_do < CALM and self._at_leisure:  # one by one, so that whoever comes now finds us free
            name = next(iter(self._at_leisure))
            del self._at_leisure[name]
            self.queue.add(name)

    def _has_leisure(self, name: str) -> bool:
        """Whether it may wait (longer) until little else is to be done."""
        now = time.monotonic()
        if now - self._at_leisure.setdefault(name, now) >= LEISURE_S:
            del self._at_leisure[name]
            return False
        self.queue.add_after(name, LEISURE_S)
        return True

    async def _reconcile(self, name: str) -> str:
        snapshot = await self._reader.read(name)
        if snapshot is None:
            self.capacity.withdraw(name)
            return "gone"
        try:
            return await self._attempt(name, snapshot)
        except (apply.Overtaken, NotFound) as error:
            self.queue.retry(name)  # not at once: the watch may still have to receive what overtook us
            log.debug("looking again", workload=name, why=str(error))
            return "again"

    async def _attempt(self, name: str, snapshot: WorkloadSnapshot) -> str:
        try:
            with self.capacity.reserve(name, _created(snapshot.workload)) as reservation:
                plan = reconcile(snapshot, self._now(), reservation.ask, self._rng)
                reservation.drop_unused()  # before the writes, so that others can have the place meanwhile
                result = await self._carry_out(name, snapshot, plan)
                reservation.keep()
                return result
        except apply.JobRefused as error:
            snapshot = self._reader.peek(name) or snapshot  # it may have its finalizer by now
            told = retries.refused_by_server(
                snapshot, self._now(), self._rng, str(error), for_good=error.for_good
            )
            await self._perform(name, snapshot, told)
            return "refused"

    async def _carry_out(self, name: str, snapshot: WorkloadSnapshot, plan: Plan) -> str:
        if plan.can_wait and self._lull.is_busy and self._has_leisure(name):
            self._look_again(name, plan.again_at)
            return "later"
        await self._perform(name, snapshot, plan)
        return "idle" if plan.is_empty else "done"

    async def _perform(self, name: str, snapshot: WorkloadSnapshot, plan: Plan) -> None:
        await self._hands.perform(snapshot.workload, plan)
        if plan.status is not None:
            self._metrics.tell(snapshot.workload, plan.status)
            log.info(
                "status written",
                workload=name,
                phase=plan.status.phase,
                node=plan.status.assigned_node,
                why=plan.status.message,
            )
        self._look_again(name, plan.again_at)

    def _look_again(self, name: str, at: datetime | None) -> None:
        if at is not None:
            self.queue.add_after(name, max(0.0, (at - self._now()).total_seconds()))


def _created(workload: GPUWorkload) -> float:
    """When the workload was created, in seconds; 0 if it does not say."""
    created = moments.read(workload.metadata.creation_timestamp)
    return created.timestamp() if created else 0.0


def _order(workload: GPUWorkload) -> tuple[int, str]:
    """After a restart those are looked at first that come first: by priority, then by age."""
    return -place.PRIORITIES[workload.spec.priority], workload.metadata.creation_timestamp
