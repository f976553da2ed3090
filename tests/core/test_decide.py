"""Where a request goes, and why not: one case for each rule."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, fits, rank, why_not
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Node, Taint
from gpu_orchestrator.core.request import Expression, Fabric, HostPort, Request, Term, Toleration
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, placed, request, shared, takes, two_islands, whole

POLICY = Registry().policy()


def answer(asked: Request, to: Cluster) -> Placement | Refusal:
    return decide(asked, to, POLICY, random.Random(1))


def refused(asked: Request, to: Cluster) -> Refusal:
    said = answer(asked, to)
    assert isinstance(said, Refusal), said
    return said


@pytest.mark.parametrize(
    ("wish", "bad", "good", "reason"),
    [
        pytest.param({}, {"ready": False}, {}, "1 not ready", id="not ready"),
        pytest.param({}, {"schedulable": False}, {}, "1 is cordoned", id="cordoned"),
        pytest.param({}, {"barred": "are draining"}, {}, "1 is draining", id="barred"),
        pytest.param(
            {"vendor": "amd"},
            {"barred": "are draining"},
            {"vendor": "amd"},
            "1 has no amd GPU",
            id="barred, but waiting would not help either",
        ),
        pytest.param(
            {}, {"gpus": 0, "barred": "cannot be counted"}, {}, "1 cannot be counted", id="barred, uncounted"
        ),
        pytest.param(
            {}, {"taints": [Taint("gpu", "no")]}, {}, "1 has the taint gpu=no:NoSchedule", id="tainted"
        ),
        pytest.param(
            {},
            {"taints": [Taint("x", effect="NoExecute")]},
            {},
            "1 has the taint x:NoExecute",
            id="evicting taint",
        ),
        pytest.param(
            {"tolerations": (Toleration("gpu", value="yes"),)},
            {"taints": [Taint("gpu", "no")]},
            {"taints": [Taint("gpu", "yes")]},
            "1 has the taint gpu=no:NoSchedule",
            id="tolerates by value",
        ),
        pytest.param(
            {"tolerations": (Toleration(operator="Exists", effect="NoSchedule"),)},
            {"taints": [Taint("a", effect="NoExecute")]},
            {"taints": [Taint("a"), Taint("b")]},
            "1 has the taint a:NoExecute",
            id="tolerates every taint of one effect",
        ),
        pytest.param({}, {"gpus": 0}, {}, "1 has no GPU", id="no devices"),
        pytest.param(
            {"labels": {"zone": "a", "rack": "1"}},
            {"labels": {"zone": "a"}},
            {"labels": {"zone": "a", "rack": "1"}},
            "1 does not match the selector rack=1",
            id="node selector",
        ),
        pytest.param(
            {"affinity": (Term((Expression("zone", "In", ("a", "b")),)),)},
            {"labels": {"zone": "c"}},
            {"labels": {"zone": "b"}},
            "1 does not match the node affinity",
            id="affinity In",
        ),
        pytest.param(
            {"affinity": (Term((Expression("zone", "NotIn", ("a",)),)),)},
            {"labels": {"zone": "a"}},
            {},
            "1 does not match the node affinity",
            id="affinity NotIn also takes nodes without the label",
        ),
        pytest.param(
            {"affinity": (Term((Expression("zone", "Exists"),)),)},
            {},
            {"labels": {"zone": "z"}},
            "1 does not match the node affinity",
            id="affinity Exists",
        ),
        pytest.param(
            {"affinity": (Term((Expression("old", "DoesNotExist"),)),)},
            {"labels": {"old": ""}},
            {},
            "1 does not match the node affinity",
            id="affinity DoesNotExist",
        ),
        pytest.param(
            {"affinity": (Term((Expression("gen", "Gt", ("3",)),)),)},
            {"labels": {"gen": "3"}},
            {"labels": {"gen": "4"}},
            "1 does not match the node affinity",
            id="affinity Gt",
        ),
        pytest.param(
            {
                "affinity": (
                    Term((Expression("gen", "Lt", ("9" * 400,)),)),
                    Term((Expression("good", "Exists"),)),
                )
            },
            {"labels": {"gen": "3"}},
            {"labels": {"good": "yes"}},
            "1 does not match the node affinity",
            id="affinity with a bound beyond 64 bits",
        ),
        pytest.param(
            {"affinity": (Term((Expression("gen", "Lt", ("3",)),)),)},
            {"labels": {"gen": "new"}},
            {"labels": {"gen": "2"}},
            "1 does not match the node affinity",
            id="affinity Lt wants a number",
        ),
        pytest.param(
            {"affinity": (Term(fields=(Expression("metadata.name", "In", ("good",)),)),)},
            {},
            {},
            "1 does not match the node affinity",
            id="affinity to a node by name",
        ),
        pytest.param(
            {"affinity": (Term(), Term((Expression("zone", "Exists"),)))},
            {},
            {"labels": {"zone": "a"}},
            "1 does not match the node affinity",
            id="terms are alternatives and an empty one matches nothing",
        ),
        pytest.param(
            {
                "reach": (
                    (Term((Expression("zone", "In", ("a",)),)), Term((Expression("zone", "In", ("b",)),))),
                    (Term((Expression("rack", "In", ("1",)),)), Term((Expression("rack", "In", ("2",)),))),
                )
            },
            {"labels": {"zone": "a", "rack": "3"}},
            {"labels": {"zone": "b", "rack": "1"}},
            "1 cannot reach the pod's volumes",
            id="volumes: one term of each",
        ),
        pytest.param({"vendor": "amd"}, {}, {"vendor": "amd"}, "1 has no amd GPU", id="vendor"),
        pytest.param({"models": ("G2",)}, {"model": "T4"}, {"model": "G2"}, "1 is T4 (G2 asked)", id="model"),
        pytest.param(
            {"models": ("G2", "G3")},
            {},
            {"model": "G3"},
            "1 is of unknown model (G2 or G3 asked)",
            id="any of several models",
        ),
        pytest.param(
            {"memory_mib": 40_000},
            {"memory_mib": 16_000},
            {"memory_mib": 80_000},
            "1 has no GPU of 40000 MiB",
            id="size of a device",
        ),
        pytest.param(
            {"fabric": Fabric(rdma=True)}, {}, {"rdma_ports": 1}, "1 has no RDMA port", id="rdma required"
        ),
        pytest.param(
            {"fabric": Fabric(min_ports=2)},
            {"rdma_ports": 1},
            {"rdma_ports": 2},
            "1 has fewer than 2 RDMA ports",
            id="rdma ports",
        ),
        pytest.param(
            {"fabric": Fabric(cufile=True)}, {}, {"cufile": True}, "1 has no cuFile storage", id="cuFile"
        ),
        pytest.param({"gpus": 3}, {"gpus": 2}, {}, "1 has fewer than 3 free GPUs", id="too few GPUs"),
        pytest.param(
            {"gpus": 2},
            {"gpus": [Device(0), Device(1, healthy=False)]},
            {},
            "1 has fewer than 2 healthy GPUs",
            id="too few healthy GPUs",
        ),
        pytest.param(
            {"gpus": 2, "mode": "Required", "min_bandwidth_gbps": 600},
            {},
            {"links": {(0, 3): 600}},
            "1 offers less than 600 GB/s",
            id="bandwidth required",
        ),
        pytest.param(
            {"resources": {"cpu": 4}},
            {"resources": {"cpu": 3}},
            {"resources": {"cpu": 4}},
            "1 has too little cpu",
            id="cpu",
        ),
        pytest.param(
            {"resources": {"pods": 1}},
            {},
            {"resources": {"pods": 110}},
            "1 has no room for another pod",
            id="number of pods",
        ),
        pytest.param(
            {"resources": {"vendor.example/nic": 1}},
            {},
            {"resources": {"vendor.example/nic": 1}},
            "1 has no vendor.example/nic",
            id="extended resource that no other node has",
        ),
    ],
)
def test_node_is_refused_with_a_reason(
    wish: dict[str, Any], bad: dict[str, Any], good: dict[str, Any], reason: str
) -> None:
    """The bad node alone is a refusal that says why; the good one beside it is taken."""
    asked = request("pod", **wish)
    said = refused(asked, cluster(_node("bad", bad)))
    assert said.message == f"0/1 nodes fit: {reason}"
    assert said.nearest is not None
    assert said.nearest.node == "bad"
    assert placed(answer(asked, cluster(_node("bad", bad), _node("good", good))))[0] == "good"


def _node(name: str, wish: dict[str, Any]) -> Node:
    return node(name, **{"gpus": 4, **wish})


def test_prefer_no_schedule_taint_refuses_no_request() -> None:
    soft = node("a", 1, taints=[Taint("x", effect="PreferNoSchedule")])
    assert placed(answer(request("pod"), cluster(soft))) == ("a", (0,))


def test_host_ports_clash_on_the_same_address_and_protocol_only() -> None:
    held = [Placement("web", "a", host_ports=(HostPort(80, ip="10.0.0.1"),))]
    taken = cluster(node("a", 1), held=held)
    assert (
        refused(request("pod", host_ports=(HostPort(80),)), taken).message
        == "0/1 nodes fit: 1 has host port 80 taken"
    )
    for port in (HostPort(80, "UDP"), HostPort(81), HostPort(80, ip="10.0.0.2")):
        assert placed(answer(request("pod", host_ports=(port,)), taken)) == ("a", (0,))


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        pytest.param({"gpus": 1}, "has no wholly free GPU", id="one whole GPU"),
        pytest.param({"gpus": 2}, "has fewer than 2 free GPUs", id="two whole GPUs"),
        pytest.param({"share": 600}, "has no GPU with 600 of 1000 milli free", id="share"),
        pytest.param(
            {"share": 100, "memory_mib": 70},
            "has no GPU with 100 of 1000 milli and 70 MiB free",
            id="and memory",
        ),
        pytest.param({"shared": True, "memory_mib": 70}, "has no GPU with 70 MiB free", id="memory alone"),
        pytest.param(
            {"gpus": 2, "share": 600}, "has fewer than 2 GPUs with 600 of 1000 milli free", id="shares of two"
        ),
    ],
)
def test_shares_are_never_oversold_and_never_mixed_with_whole_devices(
    wish: dict[str, Any], reason: str
) -> None:
    """Device 0 is held whole, device 1 in part."""
    held = [whole("w", "a", 0), shared("s", "a", 1, milli=500, memory_mib=20)]
    busy = cluster(node("a", 2, memory_mib=80), held=held)
    assert refused(request("pod", **wish), busy).message == f"0/1 nodes fit: 1 {reason}"
    assert placed(answer(request("pod", share=500, memory_mib=60), busy)) == ("a", (1,))


def test_memory_of_foreign_processes_is_not_given() -> None:
    """24 in all, 10 used by others, 10 reserved: 4 are left."""
    card = cluster(
        node("a", [Device(0, memory_mib=24, taken_mib=10)]), held=[shared("m", "a", 0, memory_mib=10)]
    )
    assert placed(answer(request("pod", shared=True, memory_mib=4), card)) == ("a", (0,))
    refused(request("pod", shared=True, memory_mib=5), card)


def test_devices_of_different_vendors_are_never_given_together() -> None:
    makers = [Device(0, vendor="amd"), Device(1, vendor="nvidia"), Device(2, vendor="nvidia")]
    both = cluster(node("a", makers))
    assert placed(answer(request("pod", 2), both)) == ("a", (1, 2))
    said = refused(request("pod", 3), both)
    assert said.message == "0/1 nodes fit: 1 has fewer than 3 free GPUs"
    assert said.never


def test_request_without_gpus_needs_only_other_resources() -> None:
    small = cluster(node("a", 0, resources={"cpu": 8}), held=[takes("other", "a", {"cpu": 6})])
    assert placed(answer(request("pod", 0, resources={"cpu": 2}), small)) == ("a", ())
    refused(request("pod", 0, resources={"cpu": 3}), small)


@pytest.mark.parametrize(
    ("nodes", "wish", "message"),
    [
        pytest.param([], {"gpus": 1}, "0/0 nodes fit: there are no nodes", id="no nodes"),
        pytest.param(
            [node("a", 2), node("b", 2)],
            {"gpus": 4},
            "0/2 nodes fit: 2 have fewer than 4 free GPUs",
            id="too few GPUs everywhere",
        ),
        pytest.param(
            [
                *(node(f"small-{i}", 2) for i in range(7)),
                *(node(f"off-{i}", 8, ready=False) for i in range(5)),
            ],
            {"gpus": 4},
            "0/12 nodes fit: 7 have fewer than 4 free GPUs, 5 not ready",
            id="most frequent reason first",
        ),
        pytest.param(
            [
                *(node(f"g{i}", 0) for i in range(2)),
                *(node(f"t{i}", 4, model="T4") for i in range(3)),
                node("v", 1),
            ],
            {"gpus": 1, "models": ("G2",)},
            "0/6 nodes fit: 3 are T4 (G2 asked), 2 have no GPU, 1 is of unknown model (G2 asked)",
            id="nodes counted by model",
        ),
    ],
)
def test_refusal_counts_nodes_by_reason(nodes: list[Node], wish: dict[str, Any], message: str) -> None:
    said = refused(request("pod", **wish), Cluster(nodes))
    assert said.message == str(said) == message


def test_nearest_miss_is_the_node_that_lacks_least() -> None:
    held = [whole("p", "a", 0, 1, 2), whole("q", "b", 0)]
    nodes = [node("a", 4, resources={"cpu": 8}), node("b", 4, resources={"cpu": 3})]
    said = refused(request("pod", 4, resources={"cpu": 4}), cluster(*nodes, held=held))
    assert str(said.nearest) == "b lacks 1 free GPU (3 of 4) and lacks 1 cpu (3 of 4)"


def test_nearest_miss_can_be_a_slow_node_or_one_of_the_wrong_kind() -> None:
    slow = cluster(node("a", 4, links={(0, 1): 300}), node("b", 2))
    said = refused(request("pod", 2, mode="Required", min_bandwidth_gbps=600), slow)
    assert str(said.nearest) == "a offers 300 GB/s (600 asked)"
    wrong = cluster(node("a", 4, ready=False), node("b", 0, ready=False))
    assert str(refused(request("pod"), wrong).nearest) == "a not ready"
    cordoned = cluster(node("a", 4, schedulable=False))
    assert str(refused(request("pod"), cordoned).nearest) == "a is cordoned"


@pytest.mark.parametrize(
    ("nodes", "wish", "never"),
    [
        pytest.param([node("a", 4)], {"gpus": 8}, True, id="no node is that large"),
        pytest.param([node("a", 8, ready=False)], {"gpus": 8}, False, id="it may become ready"),
        pytest.param([node("a", [Device(0, healthy=False)])], {}, False, id="it may become healthy"),
        pytest.param([node("a", 1, model="T4")], {"models": ("G2",)}, True, id="no node of that model"),
        pytest.param(
            [node("a", 1, resources={"cpu": 1})], {"resources": {"cpu": 2}}, True, id="too much cpu"
        ),
        pytest.param([node("a", 1)], {"resources": {"odd": 1}}, True, id="a resource no node has"),
        pytest.param(
            [node("a", 4, links=two_islands(2))],
            {"gpus": 3, "mode": "Required", "min_bandwidth_gbps": 1},
            True,
            id="no island is that large",
        ),
    ],
)
def test_refusal_tells_whether_waiting_can_help(nodes: list[Node], wish: dict[str, Any], never: bool) -> None:
    assert refused(request("pod", **wish), Cluster(nodes)).never is never


def test_fits_and_why_not_answer_without_deciding() -> None:
    both = cluster(node("a", 1), node("b", 2))
    assert not fits(request("pod", 2).shape, both, "a")
    assert fits(request("pod", 2).shape, both, "b")
    assert why_not(request("pod", 2).shape, both, POLICY) is None
    said = why_not(request("pod", 3).shape, both, POLICY)
    assert said is not None
    assert said.never


def test_rank_names_the_nodes_that_fit_best_first() -> None:
    nodes = cluster(node("a", 2), node("b", 8), node("c", 4), node("d", 4, ready=False))
    assert rank(request("pod", 1).shape, nodes, POLICY) == ["b", "c", "a"]
    assert rank(request("pod", 4).shape, nodes, POLICY) == ["b", "c"]
    assert rank(request("pod", 9).shape, nodes, POLICY) == []
