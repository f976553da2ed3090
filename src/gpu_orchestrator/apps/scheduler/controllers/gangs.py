"""Evict the members of a gang of which only some were bound, and let it start over.

A bind cannot be undone. So when the bind of one member fails after others were bound (its pod was deleted, or
we were killed in between), the others hold their GPUs and wait for it. It is placed beside them when there is
room. If there is none for `wait_s`, or nobody takes the place of the deleted pod, the gang gives back what it
holds.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.engine.gang_members import PartlyStarted

log = structlog.get_logger()


class GangController:
    """`may_write` returns whether we lead; `evicts` is called with each pod that is evicted."""

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        reporter: Reporter,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        wait_s: float,
        evicts: Callable[[Pod, str], None] = lambda pod, why: None,
    ) -> None:
        self._client, self._coordinator, self._reporter = client, coordinator, reporter
        self._metrics, self._may_write, self._clock, self._wait_s = metrics, may_write, clock, wait_s
        self._evicts, self._since = evicts, dict[str, float]()

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.check()
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("gangs")
                log.exception("gangs not checked")
            await asyncio.sleep(min(every_s, self._wait_s / 4))

    async def check(self) -> None:
        """Evict what has been partly started for too long."""
        found = {each.gang: each for each in self._coordinator.engine.partly_started()}
        now = self._clock()
        self._since = {gang: self._since.get(gang, now) for gang in found}
        for gang, since in self._since.items():
            if now - since >= self._wait_s:
                await self._start_over(found[gang])

    async def _start_over(self, gang: PartlyStarted) -> None:
        ours = self._coordinator.our_pods
        for pod in [ours[uid] for uid in gang.started if uid in ours]:
            if self._may_write() and not pod.metadata.deletion_timestamp:
                await self._evict(pod, gang)

    async def _evict(self, pod: Pod, gang: PartlyStarted) -> None:
        why = (
            f"gang {gang.gang}: {len(gang.started)} of {gang.least} members were bound, and the others "
            f"were not for {self._wait_s:g} s; it starts over"
        )
        try:
            await pods.evict(self._client, pod)
        except KubeError as error:
            log.warning("pod not evicted", pod=key(pod), why=why, error=str(error))
            self._reporter.report_gang(pod, f"{why}, but {error}")
        else:
            log.warning("pod evicted", pod=key(pod), why=why)
            self._reporter.report_gang(pod, why)
            self._evicts(pod, why)
