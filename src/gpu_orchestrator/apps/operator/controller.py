"""Brings news to `reconcile` and its plans to `apply`: watches, queue, and the passes between them.

watches ──► world (what is free) ──found──┐
   └──────► queue of workload keys ◄──────┴── again_at
               └──► facts ──► reconcile ──► plan ──► apply ──► our own writes, seen at once
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
from gpu_orchestrator.apps.operator import apply, moments, retries, seek
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator.eyes import Eyes
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.plan import Plan
from gpu_orchestrator.apps.operator.reconcile import reconcile
from gpu_orchestrator.apps.operator.watches import watch
from gpu_orchestrator.apps.operator.world import World
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
        self.world = World(uses.registry, uses.rng, clock=time.monotonic, found=self.queue.add)
        self._eyes = eyes = Eyes(uses.client, self._watches, claims_by_default)
        self._hands = apply.Hands(
            uses.client, uses.recorder, eyes.keep_workload, self._keep_job, eyes.keep_deletion
        )
        self._working = self._stopping = False
        self._in_hand = 0
        self._at_leisure: dict[str, float] = {}
        self._listen()

    def _listen(self) -> None:
        seen = self._watches
        seen.nodes.on_change(self.world.see_node)
        seen.pods.on_change(self.world.see_pod)
        seen.pods.on_change(self._pod_changed)
        seen.jobs.on_change(self.world.see_job)
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
        self._eyes.keep_job(job)
        self.world.see_job(None, job)

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
        facts = await self._eyes.look(name)
        if facts is None:
            self.world.withdraw(name)
            return "gone"
        try:
            return await self._attempt(name, facts)
        except (apply.Overtaken, NotFound) as error:
            self.queue.retry(name)  # not at once: the watch may still have to receive what overtook us
            log.debug("looking again", workload=name, why=str(error))
            return "again"

    async def _attempt(self, name: str, facts: Facts) -> str:
        try:
            with self.world.reserve(name, _created(facts.workload)) as reservation:
                plan = reconcile(facts, self._now(), reservation.ask, self._rng)
                reservation.drop_unused()  # before the writes, so that others can have the place meanwhile
                result = await self._carry_out(name, facts, plan)
                reservation.keep()
                return result
        except apply.JobRefused as error:
            facts = self._eyes.glance(name) or facts  # it may have its finalizer by now
            told = retries.refused_by_server(
                facts, self._now(), self._rng, str(error), for_good=error.for_good
            )
            await self._perform(name, facts, told)
            return "refused"

    async def _carry_out(self, name: str, facts: Facts, plan: Plan) -> str:
        if plan.can_wait and self._lull.is_busy and self._has_leisure(name):
            self._look_again(name, plan.again_at)
            return "later"
        await self._perform(name, facts, plan)
        return "idle" if plan.is_empty else "done"

    async def _perform(self, name: str, facts: Facts, plan: Plan) -> None:
        await self._hands.perform(facts.workload, plan)
        if plan.status is not None:
            self._metrics.tell(facts.workload, plan.status)
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
    return -seek.PRIORITIES[workload.spec.priority], workload.metadata.creation_timestamp
