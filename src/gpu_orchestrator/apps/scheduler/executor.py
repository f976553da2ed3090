"""Performs what the desk wants done, many jobs at once, and brings the outcome back to it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed, Outcome, PodEnded
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, holds_of
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics

CLEAR_TRIES = 10
SEEN_WITHIN_S = 2.0
LOOK_EVERY_S = 0.02
SHORT_S = 30.0

log = structlog.get_logger()


class KubeExecutor:
    """The desk's `Executor`. The two need each other, so `Scheduler` makes this first and attaches the desk
    before any watch is heard."""

    _coordinator: Coordinator
    _releaser: Releaser

    def __init__(
        self,
        client: Client,
        pods: PodStatusWriter,
        leases: DeviceLeases | None,
        binder: Binder,
        reporter: Reporter,
        *,
        metrics: Metrics,
        pacer: Pacer,
    ) -> None:
        self._client, self._pods, self._leases = client, pods, leases
        self._binder, self._reporter = binder, reporter
        self._metrics, self._pacer = metrics, pacer
        self._tasks = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._bound_at: dict[str, float] = {}

    def attach(self, coordinator: Coordinator, releaser: Releaser) -> None:
        """Report outcomes to this desk, and hand ended pods to this releaser."""
        self._coordinator, self._releaser = coordinator, releaser

    def place(self, job: BindJob) -> None:
        self._tasks.start(self._place(job))
        self._pacer.set(len(self._coordinator.binding))

    def abandon(self, job: BindJob, why: str) -> None:
        """Report the failure in the next turn of the event loop: the desk calls this in the middle of a
        handler, and the rest of that handler must come before the pod is looked at again."""
        asyncio.get_running_loop().call_soon(self._coordinator.done, Failed(job, why))

    def refuse(self, pod: Pod, why: str) -> None:
        self._reporter.refused(pod, why)

    def ended(self, ended: PodEnded) -> None:
        uid = ended.pod.metadata.uid
        node = ended.placement.node if ended.placement else ""
        bound_at = self._bound_at.pop(uid, float("-inf"))
        short = asyncio.get_running_loop().time() - bound_at < SHORT_S
        self._releaser.add(uid, node, short=short)

    def clear(self, pod: Pod) -> None:
        self._tasks.start(self._clear(pod))

    def wake_at(self, moment: float | None) -> None:
        """Have the engine look again at this moment; the latest wish counts."""
        if self._timer is not None:
            if self._timer.when() == moment:
                return
            self._timer.cancel()
            self._timer = None
        if moment is not None:
            self._timer = asyncio.get_running_loop().call_at(moment, self._tick)

    async def finish(self) -> None:
        """Decide nothing more and let what is under way come to its end."""
        self._coordinator.close()
        self.wake_at(None)
        await self._tasks.finish()

    def _tick(self) -> None:
        self._timer = None
        self._coordinator.tick()

    async def _place(self, job: BindJob) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            outcome = await self._binder.perform(job)
        except Exception as error:  # the edge of one job: others go on, this one is not lost
            log.exception("binding failed", pod=key(job.pod))
            outcome = Failed(job, repr(error))
        if isinstance(outcome, Bound):
            self._bound_at[job.pod.metadata.uid] = loop.time()
        self._observe(outcome, loop.time() - began)
        self._coordinator.done(outcome)
        self._pacer.set(len(self._coordinator.binding))

    def _observe(self, outcome: Outcome, took_s: float) -> None:
        if isinstance(outcome, Failed):
            self._metrics.result("failed").observe(took_s)
            self._reporter.failed(outcome.job, outcome.why)
            return
        self._metrics.result("bound").observe(took_s)
        self._metrics.end_to_end.observe(waited_s(outcome.job.pod))
        self._reporter.bound(outcome.job)

    async def _clear(self, pod: Pod) -> None:
        """Take leases away from an unbound pod: first write to it, so that no bind that relied on them can
        land, then delete them as they were seen before that write."""
        uid = pod.metadata.uid
        mine = holds_of(uid, self._coordinator.leases.of(uid))
        try:
            if self._leases is not None and await self._touched(pod):
                for hold in mine:
                    await self._leases.release(hold)
                await self._until_seen(uid)
                log.info("leftover leases cleared", pod=key(pod), leases=[each.ref.lease for each in mine])
        except KubeError as error:
            log.warning("leftover leases not cleared", pod=key(pod), error=str(error))
        self._coordinator.cleared(uid)

    async def _touched(self, pod: Pod) -> bool:
        """False when the pod is gone or has got its place meanwhile."""
        uid = pod.metadata.uid
        for _ in range(CLEAR_TRIES):
            try:
                await self._pods.touch(pod, "a reservation that nobody used was given up; deciding anew")
            except NotFound:
                return False
            except Conflict:
                pod = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
                if pod.metadata.uid != uid or pod.spec.node_name:
                    return False
                continue
            return True
        return False

    async def _until_seen(self, uid: str) -> None:
        """The watch shows what we deleted a little later; a decision before that would see it taken."""
        for _ in range(round(SEEN_WITHIN_S / LOOK_EVERY_S)):
            if uid not in self._coordinator.leases:
                return
            await asyncio.sleep(LOOK_EVERY_S)


def waited_s(pod: Pod, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float:
    """Seconds since the pod was created."""
    try:
        created = timestamps.parse(pod.metadata.creation_timestamp)
    except ValueError:
        return 0.0
    return max(0.0, (now() - created).total_seconds())
