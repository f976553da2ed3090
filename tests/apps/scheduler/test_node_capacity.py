"""When milli-GPUs are written into a node's status; one bad node does not keep the others from theirs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from gpu_orchestrator.adapters.pacer import BUSY, Pacer
from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.api.nodecapacity import status_patch
from gpu_orchestrator.apps.scheduler.controllers.node_capacity import (
    PAUSE_S,
    REST_S,
    WRITERS,
    NodeCapacity,
)
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod
from tests.support.scripted_transport import Scripted, answer, refusal

EVERY_S = 30.0


class Nodes(Scripted):
    """Refuses writes to the nodes in `refused` with these answers, and accepts all others. The watch shows
    nothing by itself. `most` is how many writes were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, Answer] = {}
        self.most = self._writing = 0

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        self.requests.append(request)
        self._writing += 1
        self.most = max(self.most, self._writing)
        await asyncio.sleep(0.001)
        self._writing -= 1
        return self.refused.get(name_of(request), answer({"metadata": {}}))

    @property
    def written(self) -> list[tuple[str, Any]]:
        """Each node that was written to, and the status."""
        return [(name_of(each), msgspec.json.decode(each.body or b"")["status"]) for each in self.requests]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.written]


def name_of(request: Request) -> str:
    return request.target.split("/")[4]


def both(number: int | None) -> dict[str, Any]:
    amount = {names.MILLIGPU: None if number is None else str(number)}
    return {"capacity": amount, "allocatable": amount}


def showing(number: str, name: str = "a", gpus: int = 2) -> Node:
    amount = {names.MILLIGPU: number}
    return node(name, gpus, gives=amount, capacity=amount)


@asynccontextmanager
async def counted(
    world: World, server: Nodes | None = None, pacer: Pacer | None = None, metrics: Metrics | None = None
) -> AsyncIterator[tuple[NodeCapacity, Nodes]]:
    """Run the controller on the nodes of this world."""
    server, clock = server or Nodes(), asyncio.get_running_loop().time
    made = NodeCapacity(
        Client(server).with_limits(patience_s=0),
        world.nodes,
        lambda: world.coordinator.engine.cluster,
        lambda name: name not in world.silent,
        metrics=metrics or Metrics(),
        pacer=pacer or Pacer(clock),
        clock=clock,
    )
    running = asyncio.create_task(made.run(EVERY_S))
    yield made, server
    running.cancel()


def silent(*nodes: Node) -> World:
    world = World(*nodes)
    world.silent = {each.metadata.name for each in nodes}
    return world


@pytest.mark.parametrize(
    ("seen", "number", "patch"),
    [
        pytest.param(node("a"), 8000, both(8000), id="new"),
        pytest.param(showing("8k"), 8000, None, id="shown already, as the server writes it"),
        pytest.param(showing("8k"), 7000, both(7000), id="another number"),
        pytest.param(showing("8k"), 0, both(0), id="none is healthy"),
        pytest.param(showing("8k"), None, both(None), id="counts nothing any more"),
        pytest.param(node("a"), None, None, id="counts nothing"),
        pytest.param(showing("0"), None, both(None), id="zero is not nothing"),
        pytest.param(
            node("a", gives={names.MILLIGPU: "8k"}),
            8000,
            {"capacity": {names.MILLIGPU: "8000"}},
            id="one of the two is right",
        ),
        pytest.param(showing("-1"), 8000, both(8000), id="not a number"),
    ],
)
def test_patch_of_a_node(seen: Node, number: int | None, patch: Any) -> None:
    assert status_patch(seen, number) == (patch and {"status": patch})


@pytest.mark.looptime
async def test_only_nodes_that_show_another_number_are_written_to() -> None:
    world = silent(node("new", 4), showing("2k", "right"), showing("8k", "wrong"), node("plain", 0))
    async with counted(world) as (_, server):
        await asyncio.sleep(1)
        assert sorted(server.written) == [("new", both(4000)), ("wrong", both(2000))]
        paths = {each.target.partition("/status")[2] for each in server.requests}
        assert paths == {"?fieldManager=gpu-scheduler-capacity"}


@pytest.mark.looptime
async def test_nothing_is_written_again_before_the_watch_has_shown_it() -> None:
    world = silent(node("a", 2))
    async with counted(world) as (controller, server):
        await asyncio.sleep(3 * EVERY_S)
        assert server.names == ["a"]
        world.node(shown := showing("2k"))
        controller.on_node(None, shown)
        await asyncio.sleep(EVERY_S)
        assert server.names == ["a"]
        world.node(changed := showing("77"))
        controller.on_node(shown, changed)
        await asyncio.sleep(1)
        assert server.written == [("a", both(2000)), ("a", both(2000))], "somebody else has changed it"


@pytest.mark.looptime
async def test_live_agent_is_not_answered_and_its_end_is_noticed() -> None:
    world = silent(showing("77"))
    world.silent.clear()
    async with counted(world) as (_, server):
        await asyncio.sleep(2 * EVERY_S)
        assert server.written == []
        world.silent.add("a")
        await asyncio.sleep(EVERY_S)
        assert server.written == [("a", both(2000))]


@pytest.mark.looptime
async def test_node_with_a_device_plugins_pods_counts_nothing_while_they_are_there() -> None:
    """They may use any of its devices, so no claimed pod goes there."""
    world = silent(showing("2k"))
    plugin: Any = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    async with counted(world) as (controller, server):
        world.pod(pod("ordinary", node="a", schedulerName="default-scheduler", **plugin))
        await asyncio.sleep(EVERY_S)
        assert server.written == [("a", both(None))]
        world.node(without := node("a", 2))
        controller.on_node(None, without)
        world.pod_gone("ordinary")
        await asyncio.sleep(EVERY_S)
        assert server.written == [("a", both(None)), ("a", both(2000))]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "bad", [refusal(422, "Invalid"), refusal(404, "NotFound"), refusal(500, "InternalError")]
)
async def test_node_that_the_server_refuses_does_not_hold_up_the_others(bad: Answer) -> None:
    world, server = silent(*(node(f"n{number}", 2) for number in range(20))), Nodes()
    server.refused["n0"] = bad
    async with counted(world, server):
        await asyncio.sleep(20 * PAUSE_S)
        assert {name for name, _ in server.written} == {f"n{number}" for number in range(20)}
        assert sum(name == "n0" for name in server.names) < 10


@pytest.mark.looptime
async def test_nothing_is_tried_for_a_while_when_it_is_forbidden() -> None:
    """The role of an older installation lacks the right, for all nodes alike."""
    world, server = silent(*(node(f"n{number}", 2) for number in range(100))), Nodes()
    server.refused = {f"n{number}": refusal(403, "Forbidden") for number in range(100)}
    async with counted(world, server):
        await asyncio.sleep(REST_S / 2)
        assert len(server.requests) <= WRITERS
        server.refused.clear()
        await asyncio.sleep(REST_S)
        assert set(server.names) == {f"n{number}" for number in range(100)}


@pytest.mark.looptime
async def test_first_installation_writes_slowly_and_after_the_binds() -> None:
    world = silent(*(node(f"n{number}", 2) for number in range(200)))
    pacer = Pacer(asyncio.get_running_loop().time)
    pacer.set(BUSY)
    async with counted(world, pacer=pacer) as (_, server):
        await asyncio.sleep(1)
        assert server.written == [], "pods are being bound"
        pacer.set(0)
        await asyncio.sleep(1)
        assert 0 < len(server.requests) <= WRITERS * (1 + 1 / PAUSE_S)
        await asyncio.sleep(200 * PAUSE_S)
        assert sorted(server.names) == sorted(f"n{number}" for number in range(200))
        assert server.most <= WRITERS


@pytest.mark.looptime
async def test_node_that_cannot_be_compared_does_not_end_the_scheduler() -> None:
    world, metrics = silent(node("a", 2), node("b", 2)), Metrics()
    world.silent = Trap(world.silent)
    async with counted(world, metrics=metrics) as (_, server):
        await asyncio.sleep(1)
        assert server.names == ["b"]
        assert metrics.registry.get_sample_value("gpu_scheduler_errors_total", {"part": "capacity"}) == 1


class Trap(set[str]):
    """Cannot be asked for node `a`."""

    def __contains__(self, name: object) -> bool:
        if name == "a":
            raise RuntimeError("a defect")
        return super().__contains__(name)
