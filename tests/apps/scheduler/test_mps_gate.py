"""A pod whose share MPS holds goes to a node with daemons, and is bound when its own listens."""

import asyncio

import pytest

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report

MARKED = {"annotations": {"gpu.scheduling/sharing": "mps", "gpu.scheduling/claim-template": "half"}}


class Gate:
    def __init__(self) -> None:
        self.reports = Store[GpuNodeStatus]()
        self.is_live = True
        self.gate = MpsGate(self.reports, lambda _: self.is_live)

    def report(self, *folders: str, refused: tuple[str, ...] = ()) -> None:
        mps = {"folders": list(folders), "refused": list(refused)}
        for change in self.reports.put(report("a", {"id": 0}, mps=mps)):
            self.gate.on_node_status(*change)


@pytest.mark.looptime
async def test_gate_opens_when_the_report_lists_the_daemon() -> None:
    made = Gate()
    made.report("other")
    waiting = [asyncio.create_task(made.gate.wait("a", "mine")) for _ in range(2)]
    await asyncio.sleep(10)
    made.report("other", "another")
    await asyncio.sleep(10)
    assert not any(each.done() for each in waiting)
    made.report("mine")
    assert await asyncio.gather(*waiting) == ["", ""]
    assert await made.gate.wait("a", "mine") == ""


@pytest.mark.looptime
async def test_gate_gives_up_with_the_reason_and_when_the_scheduler_stops() -> None:
    made = Gate()
    assert await made.gate.wait("a", "mine") == "the agent of a did not start the MPS daemon mine in 30 s"
    waiting = asyncio.create_task(made.gate.wait("a", "mine"))
    await asyncio.sleep(1)
    made.gate.stop()
    assert await waiting == "this scheduler stops"


@pytest.mark.looptime
async def test_gate_does_not_wait_where_there_is_no_room() -> None:
    made = Gate()
    made.report("other")
    waiting = asyncio.create_task(made.gate.wait("a", "mine"))
    await asyncio.sleep(1)
    made.report("other", refused=("mine",))
    assert "has no room for another MPS daemon" in await waiting
    assert "raise mpsDaemons" in await made.gate.wait("a", "mine")
    made.report("mine", refused=("mine",))
    assert await made.gate.wait("a", "mine") == "", "it found room meanwhile"


@pytest.mark.looptime
async def test_gate_does_not_believe_what_a_dead_agent_reported_last() -> None:
    made = Gate()
    made.report("mine")
    made.is_live = False
    why = await made.gate.wait("a", "mine")
    assert why == "the agent of a, which keeps the MPS daemon mine, gives no sign of life"
    waiting = asyncio.create_task(made.gate.wait("a", "mine"))
    await asyncio.sleep(10)
    made.is_live = True
    made.gate.on_agent("a")
    assert await waiting == ""


def test_pod_prepared_for_mps_waits_where_the_agent_is_dead() -> None:
    world = World(node("a", 1))
    world.report(report("a", {"id": 0}, mps={}))
    world.silent.add("a")
    world.coordinator.nodes.recount_silent()
    world.claim(claim("half", exclusivity="Shared", share=500))
    world.pod(pod("p", meta=MARKED))
    assert "1 does not match the selector gpu.scheduling/sharing=mps" in world.executor.refused["p"]
    world.silent.clear()
    world.coordinator.nodes.on_agent("a")
    assert [job.placement.node for job in world.executor.jobs] == ["a"]


def test_pod_prepared_for_mps_goes_only_where_an_agent_keeps_daemons() -> None:
    forged = node("b", 1, labels={"gpu.scheduling/sharing": "mps"})
    world = World(node("a", 1), forged)
    world.claim(claim("half", exclusivity="Shared", share=500))
    world.pod(pod("p", meta=MARKED))
    assert "2 do not match the selector gpu.scheduling/sharing=mps" in world.executor.refused["p"]
    world.report(report("a", {"id": 0}, mps={}))
    assert [job.placement.node for job in world.executor.jobs] == ["a"]
    assert inventory.node_of(forged).label("gpu.scheduling/sharing") is None
