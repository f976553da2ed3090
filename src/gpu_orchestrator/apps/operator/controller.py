"""Brings news to `reconcile` and its plans to `apply`: watches, queue, and the passes between them.

watches ──► world (what is free) ──found──┐
   └──────► queue of workload keys ◄──────┴── again_at
               └──► facts ──► reconcile ──► plan ──► apply ──► our own writes, seen at once
"""

import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import NotFound
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.watch import Watch
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.lull import CALM, Lull
from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.kubernetes import NODES, PODS, Node, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator import apply, seek, tries
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator.eyes import Eyes
from gpu_orchestrator.apps.operator.facts import Facts, Given
from gpu_orchestrator.apps.operator.job import JOBS, SELECTOR, Job
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.plan import Plan
from gpu_orchestrator.apps.operator.reconcile import reconcile
from gpu_orchestrator.apps.operator.world import World, job_key
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.policies.registry import Registry

NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
WORKERS = 32
LEISURE_S = 60.0
"""How long a finalizer may wait for a lull. Meanwhile Kubernetes cleans up what is deleted."""

log = structlog.get_logger()


def utc_now() -> datetime:
    return datetime.now(UTC)


class Controller:
    """`namespace`: serve only workloads there; nodes and pods are counted everywhere. `claims_by_default`:
    the gpu-scheduler places also those workloads that have no claim."""

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        metrics: Metrics,
        lull: Lull,
        *,
        namespace: str = "",
        claims_by_default: bool = False,
        registry: Registry | None = None,
        rng: Rng | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._metrics, self._lull, self._now = metrics, lull, now
        self._rng = rng or random.SystemRandom()
        self.queue: WorkQueue[str] = WorkQueue()
        self.workloads = Watch(client, GPU_WORKLOADS, namespace=namespace)
        self.jobs = Watch(
            client,
            JOBS,
            namespace=namespace,
            labels=SELECTOR,
            indices={"owner": lambda job: [jobs.owner_uid(job)]},
        )
        self.pods = Watch(client, PODS, fields=NOT_ENDED, indices={"job": lambda pod: [job_key(pod)]})
        self.nodes = Watch(client, NODES)
        self.world = World(registry or Registry(), self._rng, clock=time.monotonic, found=self.queue.add)
        self._eyes = Eyes(client, self.nodes, self.pods, self.jobs, self.workloads, claims_by_default)
        eyes = self._eyes
        self._hands = apply.Hands(client, recorder, eyes.keep_workload, self._keep_job, eyes.keep_deletion)
        self._working = self._stopping = False
        self._in_hand = 0
        self._at_leisure: dict[str, float] = {}
        self._listen()

    def _listen(self) -> None:
        self.nodes.on_change(self.world.see_node)
        self.pods.on_change(self.world.see_pod)
        self.pods.on_change(self._pod_changed)
        self.jobs.on_change(self.world.see_job)
        self.jobs.on_change(self._job_changed)
        self.workloads.on_change(self._metrics.count_phases)
        self.workloads.on_change(self._workload_changed)

    @property
    def watches(self) -> tuple[Watch[Node], Watch[Pod], Watch[Job], Watch[GPUWorkload]]:
        return self.nodes, self.pods, self.jobs, self.workloads

    async def work(self) -> None:
        """Reconcile until `stop` is called; then finish what is in hand."""
        self._working = True
        for workload in sorted(self.workloads.store, key=_order):
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
        if pod and (job := self.jobs.store.get(job_key(pod))):
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
        plan, asked = self._plan(name, facts)
        if not asked:
            self.world.withdraw(name)
        if plan.can_wait and self._lull.is_busy and self._has_leisure(name):
            self._look_again(name, plan.again_at)
            return "later"
        try:
            return await self._attempt(name, facts, plan)
        except (apply.Overtaken, NotFound) as error:
            self.world.withdraw(name)
            self.queue.retry(name)  # not at once: the news that overtook us may still be on its way
            log.debug("looking again", workload=name, why=str(error))
            return "again"
        except BaseException:
            self.world.withdraw(name)
            raise

    async def _attempt(self, name: str, facts: Facts, plan: Plan) -> str:
        try:
            await self._perform(name, facts, plan)
        except apply.JobRefused as error:
            self.world.withdraw(name)
            facts = self._eyes.glance(name) or facts  # it may have its finalizer by now
            told = tries.refused_by_server(facts, self._now(), self._rng, str(error), for_good=error.for_good)
            await self._perform(name, facts, told)
            return "refused"
        return "idle" if plan.is_empty else "done"

    def _plan(self, name: str, facts: Facts) -> tuple[Plan, bool]:
        """The plan, and whether a place was asked for on the way."""
        created = timestamps.parse_optional(facts.workload.metadata.creation_timestamp)
        since = created.timestamp() if created else 0.0
        asked: list[bool] = []

        def ask(wishes: Sequence[Request]) -> Given | Refusal:
            asked.append(True)
            return self.world.ask(name, wishes, since)

        return reconcile(facts, self._now(), ask, self._rng), bool(asked)

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


def _order(workload: GPUWorkload) -> tuple[int, str]:
    """After a restart those are looked at first that come first: by priority, then by age."""
    return -seek.PRIORITIES[workload.spec.priority], workload.metadata.creation_timestamp
