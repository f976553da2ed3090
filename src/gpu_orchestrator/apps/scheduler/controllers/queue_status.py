"""Write what each GpuQueue uses into its status, and say of one that makes no sense why it admits nothing.

Every bind changes what some queue uses, so each is written at most every few seconds, those first that have
waited longest, and a few per pass: a thousand queues cost no more writes than ten. What is wrong with a queue
is written before anything else.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, Forbidden, KubeError, NotFound
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import conditions, queue_status
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES, GpuQueue, GpuQueueStatus
from gpu_orchestrator.apps.scheduler.accounting.pod_queues import PodQueues
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.engine.engine import Engine

EVERY_S = 1.0
AGAIN_AFTER_S = 5.0
"""How long after a write the next one of the same queue may follow, unless a condition changes."""
MOST_WRITES = 10
"""Of one pass."""
REST_S = 300.0
"""How long nothing is written after the API server has forbidden it."""

_QUEUES = ignore_answer(GPU_QUEUES)

log = structlog.get_logger()


class QueueSource:
    """What is known of the queues."""

    def __init__(self, engine: Engine, pod_queues: PodQueues) -> None:
        self.usages, self.problem = engine.queue_usages, engine.queues.problem
        self.overlaps = pod_queues.overlaps


class QueueStatusWriter:
    """`may_write` returns whether we lead, `now` the time as Kubernetes writes it."""

    def __init__(
        self,
        client: Client,
        queues: Store[GpuQueue],
        source: QueueSource,
        pacer: Pacer,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        now: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._client, self._queues, self._source, self._pacer = client, queues, source, pacer
        self._metrics, self._may_write, self._now, self._clock = metrics, may_write, now, clock
        self._written: dict[str, float] = {}
        """When each queue was last written, in order."""
        self._replaced: dict[str, str] = {}
        """By queue: the version that our last write replaced, until the watch shows another."""

    async def run(self) -> None:
        while True:
            rest_s = EVERY_S
            try:
                await self.check()
            except Forbidden as error:
                log.warning("queue status not written; see config/scheduler/role.yaml", error=str(error))
                rest_s = REST_S
            except KubeError as error:
                log.warning("queue status not written", error=str(error))
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("queues")
                log.exception("queues not looked at")
            await asyncio.sleep(rest_s)

    async def check(self) -> None:
        """Write what has changed, a few queues at a time."""
        for queue, wanted in self._due()[:MOST_WRITES]:
            await self._pacer.wait()
            if not self._may_write():
                return
            await self._write(queue, wanted)

    def _due(self) -> list[tuple[GpuQueue, GpuQueueStatus]]:
        """Return the queues to be written now, in order."""
        if not len(self._queues):
            self._written.clear()
            self._replaced.clear()
            return []
        usages, overlaps, now = self._source.usages(), self._source.overlaps(), self._clock()
        urgent, due = [], []
        for queue in self._queues:
            name = queue.metadata.name
            if self._replaced.get(name) == queue.metadata.resource_version:
                continue
            wanted = queue_status.status(
                queue,
                usages.get(name, queue_status.NO_USAGE),
                problem=self._source.problem(name),
                overlap=overlaps.get(name, ""),
                now=self._now(),
            )
            if not queue_status.differs(queue.status, wanted):
                continue
            if wanted.conditions != queue.status.conditions:
                urgent.append((queue, wanted))
            elif now - self._written.get(name, now - AGAIN_AFTER_S) >= AGAIN_AFTER_S:
                due.append((queue, wanted))
        due.sort(key=lambda each: self._written.get(each[0].metadata.name, 0.0))
        return urgent + due

    async def _write(self, queue: GpuQueue, wanted: GpuQueueStatus) -> None:
        meta = queue.metadata
        self._written[meta.name] = self._clock()
        body = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": queue_status.patch(queue.status, wanted),
        }
        try:
            await self._client.patch(_QUEUES, meta.name, body, subresource="status")
        except (NotFound, Conflict):  # the watch will show what it is now
            self._replaced.pop(meta.name, None)
            return
        self._replaced[meta.name] = meta.resource_version
        ready = conditions.find(wanted.conditions, queue_status.READY)
        if ready != conditions.find(queue.status.conditions, queue_status.READY) and ready is not None:
            log.info("queue", queue=meta.name, ready=ready.status, why=ready.message)
