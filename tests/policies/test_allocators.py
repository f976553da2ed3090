"""Which devices of a node each allocator offers. One table per allocator; read it as its description."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.policies.registry import ALLOCATORS, Registry
from tests.support.builders import links, node, placed, request, shared, two_islands, whole

FOUR = node("n", 4)
ISLANDS = node("n", 8, links=two_islands())
UNEVEN = node("n", 4, links=links((0, 1), gbps=300) | links((2, 3), gbps=600))
NUMA = node("n", [Device(i, numa=i // 2) for i in range(4)])
REQUIRED = {"mode": "Required", "min_bandwidth_gbps": 300}


def given(allocator: str, where: Node, wish: dict[str, Any], held: list[Placement]) -> tuple[int, ...]:
    cluster = Cluster([where])
    for placement in held:
        cluster.place(placement)
    policy = Registry().policy("", allocator)
    return placed(decide(request("pod", **wish), cluster, policy, random.Random(1)))[1]


def taken(*devices: int) -> list[Placement]:
    return [whole(f"p{device}", "n", device) for device in devices]


@pytest.mark.parametrize(
    ("where", "wish", "held", "devices"),
    [
        pytest.param(FOUR, {"gpus": 2}, [], (0, 1), id="lowest ids"),
        pytest.param(FOUR, {"gpus": 2}, taken(1), (2, 3), id="adjacent before low"),
        pytest.param(node("n", 7), {"gpus": 3}, taken(2, 3), (4, 5, 6), id="the narrowest stretch"),
        pytest.param(ISLANDS, {"gpus": 3}, taken(0, 1), (4, 5, 6), id="inside one island"),
        pytest.param(ISLANDS, {"gpus": 6}, [], (0, 1, 2, 3, 4, 5), id="across islands if it must be"),
        pytest.param(UNEVEN, {"gpus": 2}, [], (2, 3), id="the faster pair"),
        pytest.param(UNEVEN, {"gpus": 2}, taken(2), (0, 1), id="the best that is left"),
        pytest.param(node("n", 4, links={(0, 3): 600}), {"gpus": 2}, [], (0, 3), id="fast before adjacent"),
        pytest.param(UNEVEN, {"gpus": 2, "mode": "Ignore"}, [], (2, 3), id="fast is never worse"),
        pytest.param(FOUR, {"share": 500}, [shared("s", "n", 2, milli=500)], (0,), id="shares: lowest id"),
    ],
)
def test_contiguous_keeps_devices_close(
    where: Node, wish: dict[str, Any], held: list[Placement], devices: tuple[int, ...]
) -> None:
    assert given("contiguous", where, wish, held) == devices


@pytest.mark.parametrize(
    ("where", "wish", "held", "devices"),
    [
        pytest.param(ISLANDS, {"gpus": 2}, [], (0, 4), id="one of each island"),
        pytest.param(ISLANDS, {"gpus": 4}, [], (0, 1, 4, 5), id="in turn"),
        pytest.param(ISLANDS, {"gpus": 3}, taken(4, 5, 6), (0, 1, 7), id="as far as they are free"),
        pytest.param(NUMA, {"gpus": 2}, [], (0, 2), id="one of each NUMA node"),
        pytest.param(ISLANDS, {"gpus": 2, **REQUIRED}, [], (0, 1), id="not against a bandwidth rule"),
        pytest.param(
            FOUR,
            {"gpus": 2, "share": 300},
            [shared("s", "n", 0, milli=500), shared("t", "n", 1, milli=100)],
            (2, 3),
            id="shares: the emptiest devices",
        ),
    ],
)
def test_spread_keeps_devices_apart(
    where: Node, wish: dict[str, Any], held: list[Placement], devices: tuple[int, ...]
) -> None:
    assert given("spread", where, wish, held) == devices


@pytest.mark.parametrize(
    ("where", "wish", "held", "devices"),
    [
        pytest.param(FOUR, {"gpus": 2, "prefer_ids": (3, 1)}, [], (1, 3), id="those first"),
        pytest.param(FOUR, {"prefer_ids": (3, 1)}, [], (3,), id="in the order given"),
        pytest.param(FOUR, {"prefer_ids": (3, 1)}, taken(3), (1,), id="the next if one is taken"),
        pytest.param(FOUR, {"gpus": 2, "prefer_ids": (3,)}, [], (0, 3), id="filled up with the lowest"),
        pytest.param(FOUR, {"prefer_ids": (3,)}, taken(3), (0,), id="others if none is free"),
        pytest.param(FOUR, {"prefer_ids": (9, 2, 2)}, [], (2,), id="unknown and double ids are no harm"),
        pytest.param(
            ISLANDS,
            {"gpus": 2, "prefer_ids": (1, 4), **REQUIRED},
            [],
            (0, 1),
            id="not against a bandwidth rule",
        ),
    ],
)
def test_prefer_ids_gives_the_requested_ids(
    where: Node, wish: dict[str, Any], held: list[Placement], devices: tuple[int, ...]
) -> None:
    assert given("preferIds", where, wish, held) == devices


@pytest.mark.parametrize(
    ("where", "wish", "held", "devices"),
    [
        pytest.param(ISLANDS, {"gpus": 2}, taken(4, 5), (6, 7), id="the smallest sufficient island"),
        pytest.param(ISLANDS, {"gpus": 3}, taken(4, 5), (0, 1, 2), id="which must be sufficient"),
        pytest.param(ISLANDS, {"gpus": 5}, taken(0), (1, 4, 5, 6, 7), id="across: the larger part first"),
        pytest.param(UNEVEN, {"gpus": 2, **REQUIRED}, [], (2, 3), id="with a bandwidth rule the fastest"),
        pytest.param(
            FOUR,
            {"share": 300},
            [shared("s", "n", 1, milli=500), shared("t", "n", 2, milli=700)],
            (2,),
            id="shares: the fullest that suffices",
        ),
        pytest.param(
            node("n", 2, memory_mib=80),
            {"shared": True, "memory_mib": 8},
            [shared("s", "n", 1, memory_mib=40)],
            (1,),
            id="memory alone: the least memory left",
        ),
    ],
)
def test_packed_leaves_the_rest_most_useful(
    where: Node, wish: dict[str, Any], held: list[Placement], devices: tuple[int, ...]
) -> None:
    assert given("packed", where, wish, held) == devices


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_every_allocator_keeps_a_required_bandwidth_on_misleading_links(allocator: str) -> None:
    """Low ids, adjacent ids, other islands and preferred ids all lead astray; only 2, 5 and 7 are linked."""
    trap = node("n", 8, links=links((2, 5, 7), gbps=300) | links((0, 1), (3, 4), gbps=600))
    wish = {"gpus": 3, "prefer_ids": (0, 1, 3), **REQUIRED}
    assert given(allocator, trap, wish, []) == (2, 5, 7)
