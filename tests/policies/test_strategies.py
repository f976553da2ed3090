"""Which of several nodes each strategy takes. One table per strategy; read it as its description."""

import random
from collections import Counter
from functools import cache

import pytest

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Taint
from gpu_orchestrator.core.request import Expression, Request, Term, Toleration
from gpu_orchestrator.policies.registry import STRATEGIES, Registry
from tests.support.builders import cluster, links, node, placed, request, shared, takes, two_islands, whole

SOFT = Taint("x", effect="PreferNoSchedule")
EAST = {"zone": "east"}


def likes(weight: int, zone: str) -> tuple[int, Term]:
    return weight, Term((Expression("zone", "In", (zone,)),))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize(
    ("where", "asked"),
    [
        pytest.param(
            cluster(node("a", 8), node("b", 4, labels=EAST), node("c", 8), held=[whole("p", "c", 0)]),
            request("pod", preferred=(likes(1, "east"),)),
            id="preferred node affinity",
        ),
        pytest.param(
            cluster(node("a", 4, labels={"zone": "west"}), node("b", 4, labels=EAST)),
            request("pod", preferred=(likes(40, "west"), likes(30, "east"), likes(30, "east"))),
            id="the greater weight in all",
        ),
        pytest.param(
            cluster(node("a", 8, taints=[SOFT]), node("b", 4), node("c", 8, taints=[SOFT])),
            request("pod"),
            id="PreferNoSchedule",
        ),
        pytest.param(
            cluster(node("a", 8, labels=EAST, taints=[SOFT]), node("b", 4)),
            request("pod", preferred=(likes(100, "east"),)),
            id="PreferNoSchedule before node affinity",
        ),
        pytest.param(
            cluster(node("a", 1, labels=EAST), node("b", 8, taints=[SOFT])),
            request("pod", 4, preferred=(likes(1, "east"),)),
            id="nodes that do not fit are not preferred",
        ),
        pytest.param(
            cluster(
                node("a", 4, taints=[Taint("y", effect="PreferNoSchedule")]), node("b", 4, taints=[SOFT])
            ),
            request("pod", tolerations=(Toleration("x", "Exists"),)),
            id="a tolerated taint repels nothing",
        ),
    ],
)
def test_preference_decides_before_the_strategy(strategy: str, where: Cluster, asked: Request) -> None:
    assert chosen(strategy, where, asked) == "b"


def test_nodes_repel_nothing_once_their_soft_taint_is_gone() -> None:
    where = cluster(node("a", 8, taints=[SOFT]), node("b", 4))
    copied = where.copy()
    where.set_node(node("a", 8))
    assert (chosen("leastLoaded", where), chosen("leastLoaded", copied)) == ("a", "b")
    copied.remove_node("a")
    assert not copied.inventory.has_soft


CHEAP = {"gpu-orchestrator/cheap-node": "true"}
REGISTRY = Registry()


def costs(price: str) -> dict[str, str]:
    return {**CHEAP, "gpu-orchestrator/hourly-cost": price}


def chosen(strategy: str, where: Cluster, asked: Request | None = None, allocator: str = "") -> str:
    policy = REGISTRY.policy(strategy, allocator)
    return placed(decide(asked or request("pod"), where, policy, random.Random(1)))[0]


@pytest.mark.parametrize(
    ("where", "asked", "best"),
    [
        pytest.param(
            cluster(node("a", 4), node("b", 4), held=[whole("p", "a", 0)]),
            request("pod"),
            "b",
            id="more free GPUs",
        ),
        pytest.param(cluster(node("a", 4), node("b", 8)), request("pod"), "b", id="more GPUs, all free"),
        pytest.param(
            cluster(node("a", 8), node("b", 4), held=[whole("p", "a", 0, 1, 2, 3)]),
            request("pod"),
            "b",
            id="as many free, but emptier",
        ),
        pytest.param(
            cluster(node("a", 2), node("b", 2), held=[shared("p", "a", 0, milli=100)]),
            request("pod"),
            "b",
            id="shares count as load",
        ),
        pytest.param(
            cluster(node("a", 3), node("b", [Device(i, healthy=i > 1) for i in range(4)])),
            request("pod"),
            "a",
            id="sick GPUs are not free",
        ),
        pytest.param(cluster(node("a", 4), node("b", 4)), request("pod"), "a", id="equal: the first"),
        pytest.param(
            cluster(
                node("a", 0, resources={"cpu": 8}),
                node("b", 0, resources={"cpu": 8}),
                held=[takes("p", "a", {"cpu": 1})],
            ),
            request("pod", 0, resources={"cpu": 1}),
            "b",
            id="without GPUs: more free cpu",
        ),
    ],
)
def test_least_loaded_takes_the_node_with_the_most_free(where: Cluster, asked: Request, best: str) -> None:
    assert chosen("leastLoaded", where, asked) == best


@pytest.mark.parametrize(
    ("where", "asked", "best"),
    [
        pytest.param(
            cluster(node("a", 8), node("b", 2, labels=CHEAP)), request("pod"), "b", id="cheap before empty"
        ),
        pytest.param(
            cluster(node("a", 2), node("b", 8), node("c", 4)),
            request("pod"),
            "b",
            id="unlabelled: least loaded",
        ),
        pytest.param(
            cluster(node("a", 2, labels=CHEAP), node("b", 8)),
            request("pod", 4),
            "b",
            id="the cheap one is too small",
        ),
        pytest.param(
            cluster(node("a", 2, labels={"gpu-orchestrator/cheap-node": "false"}), node("b", 4)),
            request("pod"),
            "b",
            id="only true means cheap",
        ),
        pytest.param(
            cluster(node("a", 8, labels=costs("2.5")), node("b", 2, labels=costs("0.9"))),
            request("pod"),
            "b",
            id="the lower price among cheap ones",
        ),
        pytest.param(
            cluster(node("a", 8, labels=CHEAP), node("b", 2, labels=costs("3"))),
            request("pod"),
            "b",
            id="a labelled price before none",
        ),
        pytest.param(
            cluster(node("a", 2, labels=costs("much")), node("b", 4, labels=costs("-"))),
            request("pod"),
            "b",
            id="a label that is not a number is not a price",
        ),
        pytest.param(
            cluster(node("a", 2, labels=costs("1")), node("b", 4, labels=costs("1"))),
            request("pod"),
            "b",
            id="equal prices: least loaded",
        ),
        pytest.param(
            cluster(node("a", 2, labels={"gpu-orchestrator/hourly-cost": "0.1"}), node("b", 4)),
            request("pod"),
            "b",
            id="a price without the cheap label counts for nothing",
        ),
    ],
)
def test_cost_optimized_takes_cheap_nodes_first(where: Cluster, asked: Request, best: str) -> None:
    assert chosen("costOptimized", where, asked) == best


@pytest.mark.parametrize(
    ("where", "asked", "best"),
    [
        pytest.param(
            cluster(node("a", 4), node("b", 4), held=[whole("p", "b", 0)]),
            request("pod"),
            "b",
            id="the fuller node",
        ),
        pytest.param(
            cluster(node("a", 4), node("b", 4), held=[whole("p", "b", 0)]),
            request("pod", 4),
            "a",
            id="the fuller one is too full",
        ),
        pytest.param(
            cluster(
                node("a", 2),
                node("b", 2),
                held=[shared("p", "a", 0, milli=500), shared("q", "b", 0, milli=700)],
            ),
            request("pod", share=300),
            "b",
            id="a share where it leaves nothing over",
        ),
        pytest.param(
            cluster(node("a", 4, resources={"cpu": 8}), node("b", 0, resources={"cpu": 8})),
            request("pod", 0, resources={"cpu": 1}),
            "b",
            id="without GPUs: not on a GPU node",
        ),
    ],
)
def test_bin_pack_fills_used_nodes_first(where: Cluster, asked: Request, best: str) -> None:
    assert chosen("binPack", where, asked) == best


def free_of_eight(**free: int) -> Cluster:
    """Nodes of eight GPUs each, with this number of free ones."""
    held = [whole(f"on-{name}", name, *range(8 - count)) for name, count in free.items() if count < 8]
    return cluster(*(node(name, 8) for name in free), held=held)


@pytest.mark.parametrize(
    ("where", "asked", "best"),
    [
        pytest.param(free_of_eight(a=8, b=3), request("pod"), "b", id="no whole node is broken up"),
        pytest.param(free_of_eight(a=2, b=5), request("pod"), "b", id="five become four, a useful rest"),
        pytest.param(free_of_eight(a=4, b=6), request("pod", 2), "b", id="six become four"),
        pytest.param(free_of_eight(a=8, b=5, c=4), request("pod", 4), "c", id="four are used up"),
        pytest.param(free_of_eight(a=7, b=3), request("pod"), "b", id="equal: the fuller node"),
        pytest.param(
            cluster(node("a", 8), node("b", 4)), request("pod", 4), "b", id="a small node before a large one"
        ),
        pytest.param(
            cluster(
                node("a", 8, links=two_islands()),
                node("b", 8, links=two_islands()),
                held=[whole("p", "a", 0, 4), whole("q", "b", 0, 1)],
            ),
            request("pod", 2),
            "b",
            id="equal: fewer islands are broken up",
        ),
        pytest.param(
            cluster(node("a", 2), node("b", 2), held=[shared("p", "b", 0, milli=500)]),
            request("pod", share=500),
            "b",
            id="a share goes where one is already",
        ),
        pytest.param(
            cluster(
                node("a", 2),
                node("b", 2),
                held=[shared("p", "a", 0, milli=500), shared("q", "b", 0, milli=700)],
            ),
            request("pod", share=300),
            "b",
            id="a share where it leaves nothing over",
        ),
        pytest.param(
            cluster(node("a", 4, resources={"cpu": 8}), node("b", 0, resources={"cpu": 8})),
            request("pod", 0, resources={"cpu": 1}),
            "b",
            id="without GPUs: not on a GPU node",
        ),
    ],
)
def test_least_fragmenting_keeps_the_rest_useful(where: Cluster, asked: Request, best: str) -> None:
    assert chosen("leastFragmenting", where, asked, "packed") == best


@pytest.mark.parametrize("other", ["leastLoaded", "random", "binPack", "topology"])
def test_least_fragmenting_keeps_more_free_gpus_usable(other: str) -> None:
    assert usable_part("leastFragmenting") > usable_part(other)


@cache
def usable_part(strategy: str) -> float:
    """Let requests come and go on a cluster that is nine tenths full. Return which part of the free GPUs
    requests of 1, 2, 4 and 8 could use, on average."""
    names = [f"n{number}" for number in range(10)]
    where, rng, policy = (
        cluster(*(node(name, 8) for name in names)),
        random.Random(5),
        REGISTRY.policy(strategy),
    )
    running: list[Placement] = []
    parts = []
    for number in range(500):
        while sum(len(each.devices) for each in running) > 72:
            where.release(running.pop(rng.randrange(len(running))))
        said = decide(request(f"p{number}", rng.choice((1, 1, 2, 2, 4))), where, policy, rng)
        if isinstance(said, Placement):
            where.place(said)
            running.append(said)
        free = [where.free_gpus(name) for name in names]
        parts += [sum(each - each % gpus for each in free) / sum(free) for gpus in (1, 2, 4, 8) if sum(free)]
    return sum(parts) / len(parts)


@pytest.mark.parametrize(
    ("where", "asked", "best"),
    [
        pytest.param(
            cluster(
                node("a", 4, links=links(range(4), gbps=300)), node("b", 4, links=links(range(4), gbps=600))
            ),
            request("pod", 2),
            "b",
            id="the faster links",
        ),
        pytest.param(
            cluster(
                node("a", 8, links=two_islands()),
                node("b", 8, links=two_islands()),
                held=[whole("p", "b", 0, 1)],
            ),
            request("pod", 2),
            "b",
            id="the rest of a begun island",
        ),
        pytest.param(
            cluster(node("a", 4, links=links(range(4))), node("b", 4, links=links((0, 1), (2, 3)))),
            request("pod", 2),
            "b",
            id="the island that is used up",
        ),
        pytest.param(
            cluster(
                node("a", 2, links=links(range(2))),
                node("b", 2, links=links(range(2))),
                held=[whole("p", "b", 0)],
            ),
            request("pod"),
            "b",
            id="a single GPU breaks up no island",
        ),
    ],
)
def test_topology_takes_fast_links_and_spares_islands(where: Cluster, asked: Request, best: str) -> None:
    assert chosen("topology", where, asked) == best


def test_random_takes_every_fitting_node_equally_often() -> None:
    where = cluster(node("a", 1), node("b", 8), node("off", 8, ready=False), node("c", 2), node("none"))
    rng, policy = random.Random(7), REGISTRY.policy("random")
    drawn = Counter(placed(decide(request("pod"), where, policy, rng))[0] for _ in range(3000))
    assert set(drawn) == {"a", "b", "c"}
    assert all(900 < count < 1100 for count in drawn.values())


def test_random_repeats_with_the_same_seed() -> None:
    where, policy = cluster(*(node(f"n{i}", 1) for i in range(50))), REGISTRY.policy("random")
    one, two = (
        [placed(decide(request("pod"), where, policy, rng)) for _ in range(20)]
        for rng in (random.Random(3), random.Random(3))
    )
    assert one == two


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("where", "message"),
    [
        pytest.param(cluster(), "0/0 nodes fit: there are no nodes", id="no nodes"),
        pytest.param(cluster(node("a", 2)), "0/1 nodes fit: 1 has fewer than 4 free GPUs", id="too few GPUs"),
    ],
)
def test_every_strategy_gives_the_same_refusal(strategy: str, where: Cluster, message: str) -> None:
    said = decide(request("pod", 4), where, REGISTRY.policy(strategy), random.Random(1))
    assert isinstance(said, Refusal)
    assert said.message == message


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_fills_the_cluster_to_the_last_gpu(strategy: str) -> None:
    where, rng = cluster(node("a", 3), node("b", 2), node("c", 4, labels=CHEAP)), random.Random(1)
    for number in range(9):
        said = decide(request(f"p{number}"), where, REGISTRY.policy(strategy), rng)
        assert isinstance(said, Placement)
        where.place(said)
    assert isinstance(decide(request("late"), where, REGISTRY.policy(strategy), rng), Refusal)
