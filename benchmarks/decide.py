"""How long one decision takes, how many the engine makes, and the weight of a large cluster. `make
bench-decide`.

Half-full clusters of nodes with eight GPUs; ten request shapes in turn; every decision is placed, and
releases keep the cluster half full, so each decision finds the cluster changed by the ones before.
"""

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.request import Expression, Request, Term, request

SIZES = (500, 1213, 5000, 20_000)
ISLANDS = {(a, b): 600 for half in (range(4), range(4, 8)) for a in half for b in half if a < b}
GIB = 1 << 30


def big_cluster(nodes: int) -> Cluster:
    return Cluster(_node(i) for i in range(nodes))


def _node(i: int) -> Node:
    labels = {"zone": f"zone-{i % 3}", "kubernetes.io/hostname": f"node-{i}"}
    if i % 4 == 0:
        labels |= {"gpu-orchestrator/cheap-node": "true", "gpu-orchestrator/hourly-cost": str(1 + i % 7)}
    room = {"cpu": 128_000, "memory": 1024 * GIB, "pods": 110}
    model = "A100" if i % 2 else "H100"
    return node(f"node-{i}", 8, links=ISLANDS, model=model, memory_mib=81_920, resources=room, labels=labels)


def ten_shapes() -> list[Request]:
    """One, two, four and eight GPUs; shares; a model, a zone, a bandwidth rule, cpu and memory."""
    small = {"cpu": 4000, "memory": 16 * GIB, "pods": 1}
    in_zone = (Term((Expression("zone", "In", ("zone-1", "zone-2")),)),)
    return [
        request("one", 1, resources=small),
        request("two", 2, resources=small),
        request("four", 4, resources={"cpu": 32_000, "memory": 128 * GIB, "pods": 1}),
        request("eight", 8, resources={"cpu": 64_000, "memory": 512 * GIB, "pods": 1}),
        request("half", 1, share=500, resources=small),
        request("slice", 1, share=250, memory_mib=20_000, resources=small),
        request("h100", 1, models=("H100",), resources=small),
        request("zone", 1, affinity=in_zone, resources=small),
        request("label", 2, labels={"zone": "zone-0"}, resources=small),
        request("linked", 2, mode="Required", min_bandwidth_gbps=600, resources=small),
    ]
