"""Tell, or evict, pods that run longer than they declared in a place that is kept for another.

A declared run time lets a pod run where a large one is about to start. Nobody but the kubelet holds it to
that, and only if its spec has `activeDeadlineSeconds`.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import BlockedByBudget, KubeError
from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.engine.kept import Kept

GRACE_S = 60.0
"""Ending takes a pod some time, its grace period above all."""

log = structlog.get_logger()


class OverrunController:
    """`evicts`: such pods are evicted; `may_write` returns whether we lead."""

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        reporter: Reporter,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        evicts: bool,
    ) -> None:
        self._client, self._coordinator, self._reporter = client, coordinator, reporter
        self._metrics, self._may_write, self._evicts = metrics, may_write, evicts
        self._told: set[str] = set()

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.check()
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("overruns")
                log.exception("overruns not checked")
            await asyncio.sleep(every_s)

    async def check(self) -> None:
        ours, found = self._coordinator.our_pods, self._coordinator.engine.late(GRACE_S)
        self._told &= {uid for uid, _ in found}
        for uid, kept in found:
            pod = ours.get(uid)
            if pod is None or pod.metadata.deletion_timestamp or not self._may_write():
                continue
            why = f"runs longer than it declared, and {_owner(kept, pod)} waits for its place"
            if self._evicts:
                await self._evict(pod, why)
            elif uid not in self._told:
                self._tell(pod, names.OVERRUN, why, "told")

    async def _evict(self, pod: Pod, why: str) -> None:
        try:
            await pods.evict(self._client, pod)
        except BlockedByBudget as error:
            self._failed(pod, f"{why}; not evicted: {error}", "blocked")
        except KubeError as error:
            self._failed(pod, f"{why}; not evicted: {error}", "failed")
        else:
            log.warning("pod evicted", pod=key(pod), why=why)
            self._tell(pod, names.OVERRUN, f"{why}; evicted", "evicted")

    def _failed(self, pod: Pod, why: str, action: str) -> None:
        """Tell once that a pod cannot be evicted; it is tried again."""
        if pod.metadata.uid not in self._told:
            self._tell(pod, names.NOT_OVERRUN_EVICTED, why, action)

    def _tell(self, pod: Pod, reason: str, why: str, action: str) -> None:
        self._told.add(pod.metadata.uid)
        self._metrics.overruns.labels(action).inc()
        self._reporter.report_overrun(pod, reason, why)


def _owner(kept: Kept, pod: Pod) -> str:
    """Another namespace's names are not told."""
    request = kept.waiting.request
    if request.tenant != pod.metadata.namespace:
        return "a pod of another namespace"
    return f"gang {request.gang.name}" if request.gang else "another pod"
