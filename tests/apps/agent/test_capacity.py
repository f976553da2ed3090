"""What the agent counts on its node is what the scheduler would count there."""

import asyncio

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api import inventory, names, nodecapacity
from gpu_orchestrator.api.gpunodestatus import (
    GpuNodeStatus,
    GpuNodeStatusSpec,
    GpuNodeStatusStatus,
    NodeDevice,
)
from gpu_orchestrator.api.kubernetes import Node, NodeStatus
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.agent.capacity import BURST, Capacity
from gpu_orchestrator.apps.agent.metrics import Metrics
from tests.support.agent_builders import NODE, Server
from tests.support.scripted_transport import refusal

pytestmark = pytest.mark.looptime


def report(*, healthy: int = 2, ill: int = 0) -> GpuNodeStatus:
    devices = [NodeDevice(n, health="Healthy" if n < healthy else "Unhealthy") for n in range(healthy + ill)]
    return GpuNodeStatus(ObjectMeta(NODE), GpuNodeStatusSpec(NODE), GpuNodeStatusStatus(devices=devices))


def node(shown: str | None = None, **labels: str) -> Node:
    amounts = {"cpu": "8", "nvidia.com/gpu": "8"} | ({names.MILLIGPU: shown} if shown else {})
    meta = ObjectMeta(name=NODE, labels={key.replace("_", "/"): value for key, value in labels.items()})
    return Node(meta, status=NodeStatus(capacity=amounts, allocatable=amounts))


class Site:
    def __init__(self, seen: Node | None, found: GpuNodeStatus | None) -> None:
        self.server, self.node, self.report = Server(), seen, found
        self.capacity = Capacity(
            Client(self.server).with_limits(patience_s=0),
            lambda: self.node,
            lambda: self.report,
            metrics=Metrics(NODE),
            clock=asyncio.get_running_loop().time,
        )
        self.task = asyncio.create_task(self.capacity.run(asyncio.Event()))

    async def check(self, times: int = 1) -> list[str | None]:
        """Compare so often, and return every number that was written."""
        for _ in range(times):
            self.capacity.check()
            await asyncio.sleep(0.1)
        return [each["status"]["capacity"][names.MILLIGPU] for each in self.server.writes()]

    def close(self) -> None:
        self.task.cancel()


@pytest.mark.parametrize(
    ("seen", "found", "written"),
    [
        pytest.param(node(), report(healthy=8), ["8000"], id="all healthy"),
        pytest.param(node("8k"), report(healthy=8), [], id="shown already"),
        pytest.param(node("8k"), report(healthy=7, ill=1), ["7000"], id="one is ill"),
        pytest.param(node("8k"), report(healthy=0, ill=8), ["0"], id="all are ill"),
        pytest.param(node("8k", **{"gpu.scheduling_mode": "plugin"}), report(), [None], id="for a plugin"),
        pytest.param(node("8k"), None, [], id="no report yet"),
        pytest.param(None, report(), [], id="no node yet"),
    ],
)
async def test_number_of_a_node(
    seen: Node | None, found: GpuNodeStatus | None, written: list[str | None]
) -> None:
    site = Site(seen, found)
    assert await site.check() == written
    site.close()


@pytest.mark.parametrize("healthy", [0, 1, 8])
def test_agent_and_scheduler_agree(healthy: int) -> None:
    """The scheduler finds nothing to write where the agent has written, and the other way round."""
    found, seen = report(healthy=healthy, ill=8 - healthy), node()
    counted = inventory.milligpu(inventory.node_of(seen, found))
    body = nodecapacity.status_patch(seen, counted)
    assert body is not None
    after = msgspec.structs.replace(
        seen.status,
        capacity=seen.status.capacity | body["status"]["capacity"],
        allocatable=seen.status.allocatable | body["status"]["allocatable"],
    )
    written = msgspec.structs.replace(seen, status=after)
    again = inventory.milligpu(inventory.node_of(written, found))
    assert nodecapacity.status_patch(written, again) is None


async def test_somebody_who_undoes_it_causes_a_bounded_number_of_writes() -> None:
    site = Site(node(), report())
    assert len(await site.check(times=50)) <= BURST + 1
    site.close()


async def test_refusal_is_tried_again_later() -> None:
    site = Site(node(), report())
    site.server.refused = {f"/api/v1/nodes/{NODE}/status": [refusal(403, "Forbidden")]}
    await site.check()
    await asyncio.sleep(60)
    assert len(site.server.requests) == 2
    site.close()
