"""Mark members of gangs that have begun, for the scheduler that comes after this one.

A gang of which members have ended looks like one that was bound by half. That one starts over, this one goes
on and is joined by those that take their places. While this scheduler lives it knows which of both it sees.
The mark, a condition in the status of a few members, tells the next one.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import gangs, names
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics

EVERY_S = 1.0
RETRY_S = 30.0
"""How long to rest after a write that failed."""

log = structlog.get_logger()


class GangMarker:
    """`may_write` returns whether we lead, `now` the time as Kubernetes writes it."""

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        pacer: Pacer,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        now: Callable[[], str],
    ) -> None:
        self._client, self._coordinator, self._pacer = client, coordinator, pacer
        self._metrics, self._may_write, self._now = metrics, may_write, now

    async def run(self) -> None:
        while True:
            rest_s = EVERY_S
            try:
                await self.check()
            except KubeError as error:
                log.warning("gang not marked", error=str(error))
                rest_s = RETRY_S
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("gangs")
                log.exception("gangs not marked")
                rest_s = RETRY_S
            await asyncio.sleep(rest_s)

    async def check(self) -> None:
        """Mark the members that are to be marked now."""
        engine, ours = self._coordinator.engine, self._coordinator.our_pods
        for uid in engine.to_mark():
            await self._pacer.wait()
            pod = ours.get(uid)
            if pod is None or not self._may_write():
                continue
            if gangs.is_marked(pod) or await self._mark(pod):
                engine.marked(uid)

    async def _mark(self, pod: Pod) -> bool:
        """Write the mark; return False if the pod is gone."""
        meta, mark = pod.metadata, {"type": names.GANG_BEGUN, "status": "True", "reason": "GangBegun"}
        body = {
            "metadata": {"uid": meta.uid},
            "status": {"conditions": [{**mark, "lastTransitionTime": self._now()}]},
        }
        try:
            await self._client.patch(
                PODS, meta.name, body, meta.namespace, kind=Patch.STRATEGIC, subresource="status"
            )
        except (NotFound, Conflict):
            return False
        log.debug("gang marked", pod=key(pod))
        return True
