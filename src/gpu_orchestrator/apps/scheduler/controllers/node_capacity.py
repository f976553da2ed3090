"""Write into the status of nodes how much `gpu.scheduling/milligpu` they have, where no live agent does.

The API server, quotas, autoscalers and kubelets count with that number; this scheduler decides by leases.
Every pass compares all nodes with what they show; a node that changes is compared at once. Nothing else is
remembered, so a new leader that finds the right numbers writes nothing.

Few writers with pauses: a first installation writes to every GPU node, and everybody who watches nodes gets
each change. No bind waits for any of this.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Forbidden, NotFound, Permanent
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import NODES, Node
from gpu_orchestrator.api.nodecapacity import status_patch
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.cluster import Cluster

MANAGER = "gpu-scheduler-capacity"
WRITERS = 2
PAUSE_S = 0.05
REST_S = 300.0
"""How long nothing is written after the API server has forbidden it."""

_NODES = ignore_answer(NODES)

log = structlog.get_logger()


class NodeCapacity:
    """`cluster` has the nodes as the engine uses them; `is_live` returns whether a node's agent is, which
    then writes the number itself."""

    def __init__(
        self,
        client: Client,
        nodes: Store[Node],
        cluster: Callable[[], Cluster],
        is_live: Callable[[str], bool],
        *,
        metrics: Metrics,
        pacer: Pacer,
        clock: Callable[[], float],
        pause_s: float = PAUSE_S,
    ) -> None:
        self._client, self._nodes, self._cluster, self._is_live = client, nodes, cluster, is_live
        self._metrics, self._pacer, self._clock, self._pause_s = metrics, pacer, clock, pause_s
        self._queue: WorkQueue[str] = WorkQueue()
        self._replaced: dict[str, str] = {}
        """By node: the version that our last write replaced, until the watch shows another."""
        self._resting_until = clock()

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if node := new or old:
            self._replaced.pop(node.metadata.name, None)
            self.check(node.metadata.name)

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.check(report.spec.node_name)

    def check(self, name: str) -> None:
        """Queue the node if it shows another number than it has."""
        try:
            if self._due(name):
                self._queue.add(name)
        except Exception:  # the edge of one node: it must not keep the others from being compared
            self._metrics.error("capacity")
            log.exception("capacity of a node could not be compared", node=name)

    async def run(self, every_s: float) -> None:
        """Compare all nodes, again and again: an agent that falls silent, and a device plugin's pod that
        comes or goes, change no node."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._write, workers=WRITERS))
            while True:
                breath = Breath(self._clock)
                for node in list(self._nodes):
                    self.check(node.metadata.name)
                    await breath()
                await asyncio.sleep(every_s)

    def _due(self, name: str) -> Json | None:
        """Return the patch that the node needs; None if it needs none, or not from us."""
        node, cluster = self._nodes.get(name), self._cluster()
        if node is None or name not in cluster or self._clock() < self._resting_until:
            return None
        if self._is_live(name) or node.metadata.resource_version == self._replaced.get(name):
            return None
        return status_patch(node, inventory.milligpu(cluster.node(name)))

    async def _write(self, name: str) -> None:
        await self._pacer.wait()
        node, due = self._nodes.get(name), self._due(name)
        if node is None or due is None:
            return
        try:
            await self._client.patch(_NODES, name, due, subresource="status", manager=MANAGER)
        except NotFound:
            return
        except Forbidden as error:
            self._resting_until = self._clock() + REST_S
            log.warning("node status not written; see config/scheduler/role.yaml", error=str(error))
            return
        except Permanent as error:
            self._metrics.error("capacity")
            log.warning("node status not written until the node changes", node=name, error=str(error))
        else:
            log.info("capacity of node", node=name, **due["status"])
        self._replaced[name] = node.metadata.resource_version
        await asyncio.sleep(self._pause_s)
