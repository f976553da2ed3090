"""Write `gpu.scheduling/milligpu` into the status of the agent's own node: 1000 for each healthy device.

The same rule as the scheduler's, which does this where no agent lives, on what the agent published last.
"""

import asyncio
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.api import inventory, nodecapacity
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import NODES, Node
from gpu_orchestrator.api.names import AGENT
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.pace import Pace

BURST, EVERY_S = 4, 10.0
RETRY_S = 30.0

_NODES = ignore_answer(NODES)

log = structlog.get_logger()


class Capacity:
    """`node` returns the agent's Node, `report` what it published; None if there is none yet."""

    def __init__(
        self,
        client: Client,
        node: Callable[[], Node | None],
        report: Callable[[], GpuNodeStatus | None],
        *,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._node, self._report = client, node, report
        self._metrics, self._clock = metrics, clock
        self._pace = Pace(BURST, EVERY_S)
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Compare again: the node or the report changed."""
        self._changed.set()

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self._changed.wait()
            self._changed.clear()
            if (due := self.due()) is None:
                continue
            if wait_s := self._pace.wait_s(self._clock()):
                await wait_until_set(stopped, wait_s)
                self._changed.set()
                continue
            await self._write(due, stopped)

    def due(self) -> Json | None:
        """Return the patch that the node needs; None if it shows the right number."""
        node, report = self._node(), self._report()
        if node is None or report is None:
            return None
        return nodecapacity.status_patch(node, inventory.milligpu(inventory.node_of(node, report)))

    async def _write(self, due: Json, stopped: asyncio.Event) -> None:
        node = self._node()
        if node is None:
            return
        try:
            await self._client.patch(_NODES, node.metadata.name, due, subresource="status", manager=AGENT)
        except KubeError as error:
            self._metrics.error("capacity")
            log.warning("capacity of node not written", error=str(error))
            await wait_until_set(stopped, RETRY_S)
            self._changed.set()
            return
        self._metrics.wrote("capacity")
        log.info("capacity of node", **due["status"])
