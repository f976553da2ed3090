"""Perform the coordinator's jobs, many at once, and report each outcome back to it."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob, Failed, Outcome, PodEnded
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, holds_of
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics

CLEAR_TRIES = 10
SHOWN_WITHIN_S = 2.0
POLL_S = 0.02

log = structlog.get_logger()


class KubeExecutor:
    """The coordinator's `Executor`. Each needs the other, so `Scheduler` makes this one first, and attaches
    the coordinator before it registers with the watches."""

    _coordinator: Coordinator
    _releaser: Releaser

    def __init__(
        self,
        client: Client,
        pod_status: PodStatusWriter,
        leases: DeviceLeases | None,
        binder: Binder,
        reporter: Reporter,
        *,
        metrics: Metrics,
        pacer: Pacer,
    ) -> None:
        self._client, self._pod_status, self._leases = client, pod_status, leases
        self._binder, self._reporter = binder, reporter
        self._metrics, self._pacer = metrics, pacer
        self._tasks = BackgroundTasks()
        self._timer: asyncio.Handle | None = None
        self._tick_at = 0.0

    def attach(self, coordinator: Coordinator, releaser: Releaser) -> None:
        """Report outcomes to this coordinator, and hand ended pods to this releaser."""
        self._coordinator, self._releaser = coordinator, releaser

    def bind(self, job: BindJob) -> None:
        self._tasks.start(self._bind(job))
        self._pace()

    def bind_gang(self, gang: str, jobs: Sequence[BindJob]) -> None:
        self._tasks.start(self._bind_gang(gang, jobs))
        self._pace()

    def abandon(self, job: BindJob, why: str) -> None:
        """Report the failure in the next turn of the event loop: the coordinator calls this in the middle of
        a handler, and the rest of that handler must run before the pod is queued again."""
        asyncio.get_running_loop().call_soon(self._coordinator.done, Failed(job, why))

    def report_refused(self, pod: Pod, why: str) -> None:
        self._reporter.report_refused(pod, why)

    def release(self, ended: PodEnded) -> None:
        """Hand an ended pod to the releaser."""
        uid = ended.pod.metadata.uid
        # A pod that we never saw bound may have been: then its processes ran where its leases are.
        leased = [hold.ref.node for hold in self._coordinator.lease_index.holds(uid)]
        node = ended.placement.node if ended.placement else next(iter(leased), "")
        self._releaser.add(uid, node, key(ended.pod))

    def clear_leases(self, pod: Pod) -> None:
        self._tasks.start(self._clear_leases(pod))

    def wake_at(self, moment: float | None) -> None:
        """Send the engine a tick at this time or before; None cancels it."""
        if self._timer is not None:
            if moment is not None and self._tick_at <= moment:
                return
            self._timer.cancel()
            self._timer = None
        if moment is not None:
            self._tick_at = moment
            self._timer = asyncio.get_running_loop().call_at(moment, self._tick)

    async def finish(self) -> None:
        """Stop deciding, and wait until the running jobs have ended; those that wait for volumes give up."""
        self._coordinator.close()
        self.wake_at(None)
        self._binder.stop()
        await self._tasks.finish()

    def _tick(self) -> None:
        self._timer = None
        self._coordinator.tick()

    async def _bind(self, job: BindJob) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            outcome = await self._binder.perform(job)
        except Exception as error:  # the edge of one job: it fails, the others go on
            self._metrics.error("bind")
            log.exception("binding failed", pod=key(job.pod))
            outcome = Failed(job, repr(error))
        self._observe(outcome, loop.time() - began)
        self._coordinator.done(outcome)
        self._pace()

    async def _bind_gang(self, gang: str, jobs: Sequence[BindJob]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            outcomes = await self._binder.perform_gang(gang, jobs)
        except Exception as error:  # the edge of one gang
            self._metrics.error("bind")
            log.exception("binding failed", gang=gang)
            outcomes = [Failed(job, repr(error)) for job in jobs]
        for outcome in outcomes:
            self._observe(outcome, loop.time() - began)
            self._coordinator.done(outcome)
        self._pace()

    def _pace(self) -> None:
        """Jobs that wait for volumes do not count: they do nothing meanwhile."""
        self._pacer.set(len(self._coordinator.binding) - len(self._coordinator.volume_plans))

    def _observe(self, outcome: Outcome, took_s: float) -> None:
        if isinstance(outcome, Failed):
            self._metrics.result("failed").observe(took_s)
            self._reporter.report_failed(outcome.job, outcome.why)
            return
        self._metrics.result("bound").observe(took_s)
        self._metrics.end_to_end.observe(waited_s(outcome.job.pod))
        if outcome.job.in_between:
            self._metrics.in_between.inc()
        self._reporter.report_bound(outcome.job)

    async def _clear_leases(self, pod: Pod) -> None:
        """Release leftover leases of an unbound pod. First write to the pod, so that no bind that relied on
        them can succeed; then delete the leases at the versions seen before that write."""
        uid = pod.metadata.uid
        found = holds_of(uid, self._coordinator.lease_index.of(uid))
        try:
            if self._leases is not None and await self._bump_version(pod):
                for hold in found:
                    await self._leases.release(hold)
                await self._wait_until_shown(uid)
                log.info("leftover leases cleared", pod=key(pod), leases=[each.ref.lease for each in found])
        except KubeError as error:
            log.warning("leftover leases not cleared", pod=key(pod), error=str(error))
        except Exception:  # the edge of one job: without `cleared` the pod would wait forever
            self._metrics.error("clear")
            log.exception("leftover leases not cleared", pod=key(pod))
        self._coordinator.cleared(uid)

    async def _bump_version(self, pod: Pod) -> bool:
        """Move the pod's version; return False if the pod is gone or was bound meanwhile."""
        uid = pod.metadata.uid
        if pod.spec.node_name:
            return False
        for _ in range(CLEAR_TRIES):
            try:
                why = "an unused reservation was released; scheduling again"
                await self._pod_status.bump_version(pod, why)
            except NotFound:
                return False
            except Conflict:
                pod = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
                if pod.metadata.uid != uid or pod.spec.node_name:
                    return False
                continue
            return True
        return False

    async def _wait_until_shown(self, uid: str) -> None:
        """Wait until the watch shows that the leases are gone; until then a decision would count them."""
        for _ in range(round(SHOWN_WITHIN_S / POLL_S)):
            if uid not in self._coordinator.lease_index:
                return
            await asyncio.sleep(POLL_S)


def waited_s(pod: Pod, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float:
    """Return the seconds since the pod was created."""
    try:
        return max(0.0, (now() - timestamps.parse(pod.metadata.creation_timestamp)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # malformed, or without a time zone
        return 0.0
