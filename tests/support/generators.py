"""Small clusters, requests and changes of every kind, generated from a seed.

Hypothesis draws the seed and the sizes, and so finds the smallest size at which a seed still fails. A
thousand such worlds take about a second; drawing each field through Hypothesis would take minutes and produce
mostly refusals.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.limits import MOST_AMOUNT
from gpu_orchestrator.core.node import Node, Taint, node
from gpu_orchestrator.core.request import (
    Expression,
    Fabric,
    HostPort,
    Operator,
    Request,
    Shape,
    Term,
    Toleration,
)

NAMES = ("a", "b", "c", "d")
STRATEGIES = ("leastLoaded", "random", "costOptimized", "binPack", "leastFragmenting", "topology")
ALLOCATORS = ("contiguous", "spread", "preferIds", "packed")


@dataclass(frozen=True)
class UpdateNode:
    """A node is added or changed."""

    node: Node


@dataclass(frozen=True)
class RemoveNode:
    """A node is removed."""

    name: str


@dataclass(frozen=True)
class AddRequest:
    """A request is decided."""

    shape: Shape
    strategy: str
    allocator: str


@dataclass(frozen=True)
class Release:
    """Release the n-th placement that is held."""

    which: int


Step = UpdateNode | RemoveNode | AddRequest | Release


@dataclass(frozen=True)
class World:
    """The first nodes and the steps that follow. Its repr shows seed and sizes, which generate it again."""

    seed: int
    size: int
    length: int

    @property
    def nodes(self) -> list[Node]:
        rng = Random(self.seed)
        return [a_node(rng, name) for name in NAMES[: self.size]]

    @property
    def steps(self) -> list[Step]:
        """Return the steps. A few shapes recur, so that cached standings are used and updated."""
        rng = Random(self.seed + 1)
        shapes = [a_shape(rng) for _ in range(4)]
        return [_step(rng, shapes) for _ in range(self.length)]


worlds = st.builds(World, seed=st.integers(0, 2**32), size=st.integers(1, 4), length=st.integers(0, 25))


def _step(rng: Random, shapes: list[Shape]) -> Step:
    kind = rng.random()
    if kind < 0.6:
        return AddRequest(rng.choice(shapes), rng.choice(STRATEGIES), rng.choice(ALLOCATORS))
    if kind < 0.85:
        return Release(rng.randrange(100))
    return UpdateNode(a_node(rng, rng.choice(NAMES))) if kind < 0.97 else RemoveNode(rng.choice(NAMES))


def a_node(rng: Random, name: str) -> Node:
    count, alike = rng.choice([0, 2, 4, 4, 5, 6]), _kind(rng)
    devices = [_device(rng, i, alike if rng.random() < 0.8 else _kind(rng)) for i in range(count)]
    if rng.random() < 0.25:
        devices = [_sliced(rng, each) if rng.random() < 0.6 else each for each in devices]
    wires = rng.choice([(0,), (600,), (0, 600), (100, 300, 600)])
    return node(
        name,
        devices,
        links={(a, b): rng.choice(wires) for a in range(count) for b in range(a)},
        resources={"cpu": rng.randint(2, 8), "odd": rng.randint(0, 1), "rare": int(rng.random() < 0.1)},
        labels=_some_of(rng, {"zone": rng.choice(["east", "west"]), "size": rng.choice(["1", "5", "x"])}),
        taints=[Taint("gpu", rng.choice(["", "x"]), _effect(rng))] if rng.random() < 0.2 else [],
        ready=rng.random() < 0.9,
        schedulable=rng.random() < 0.9,
        barred="are barred" if rng.random() < 0.05 else "",
        rdma_ports=rng.randint(0, 2),
        cufile=rng.random() < 0.5,
        volume_limits=(("disk", rng.randint(0, 3)),) if rng.random() < 0.5 else (),
    )


def _kind(rng: Random) -> Device:
    vendor, model = rng.choice([("nvidia", "A"), ("nvidia", "B"), ("amd", "M")])
    return Device(0, vendor=vendor, model=model, memory_mib=rng.choice([0, 16, 80, 80]))


def _device(rng: Random, number: int, kind: Device) -> Device:
    return Device(
        number,
        vendor=kind.vendor,
        model=kind.model,
        memory_mib=kind.memory_mib,
        healthy=rng.random() < 0.9,
        numa=number % 2,
    )


def _sliced(rng: Random, device: Device) -> Device:
    profile, milli = rng.choice([("1g", 142), ("1g", 142), ("3g", 428)])
    return replace(device, profile=profile, milli=milli)


def _effect(rng: Random) -> str:
    return rng.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])


def _some_of(rng: Random, labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if rng.random() < 0.7}


def a_shape(rng: Random) -> Shape:
    exclusive = rng.random() < 0.5
    milli = 1000 if exclusive else rng.choice([0, 200, 400, 500, 1000])
    memory = rng.choice([8, 40] if not milli else [0, 0, 8, 40])
    rules = _optional_rules(rng) if rng.random() < 0.4 else {}
    plain = Shape(
        gpus=rng.choice([0, 1, 1, 1, 2, 2, 3, 4]),
        exclusive=exclusive,
        profile=rng.choice(["", "", "", "1g", "3g"]) if exclusive else "",
        milli=milli,
        memory_mib=memory,
        mode=rng.choice(["Required", "Preferred", "Ignore"]),
        min_bandwidth_gbps=rng.choice([0, 0, 300]),
        prefer_ids=rng.choice([(), (2, 1), (5, 0)]),
        resources=rng.choice([(), (), (("cpu", 1),), (("cpu", 2), ("odd", 1))]),
        tolerations=rng.choice(_TOLERATIONS),
    )
    return replace(plain, **rules)


_TOLERATIONS: list[tuple[Toleration, ...]] = [
    (),
    (Toleration(operator="Exists"),),
    (Toleration("gpu", "Equal", "x"),),
    (Toleration("gpu", "Exists", effect="NoSchedule"),),
]


def _optional_rules(rng: Random) -> dict[str, Any]:
    """Return one or two rules that only some requests have."""
    rules = {
        "vendor": rng.choice(["nvidia", "amd"]),
        "models": rng.choice([("A",), ("A", "M"), ("Z",)]),
        "labels": (("zone", rng.choice(["east", "west"])),),
        "affinity": tuple(_term(rng) for _ in range(rng.randint(1, 2))),
        "reach": tuple(tuple(_term(rng) for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(1, 3))),
        "preferred": tuple((rng.randint(1, 3), _term(rng)) for _ in range(rng.randint(1, 2))),
        "host_ports": rng.choice([(HostPort(80),), (HostPort(80, ip="10.0.0.1"),), (HostPort(80, "UDP"),)]),
        "volumes": tuple(
            (rng.choice(["disk", "other"]), each) for each in rng.sample("abcd", rng.randint(1, 2))
        ),
        "fabric": rng.choice([Fabric(rdma=True), Fabric(min_ports=2), Fabric(cufile=True)]),
        "resources": rng.choice([(("unheard", 1),), (("rare", 1),), (("cpu", MOST_AMOUNT - 1),)]),
    }
    return {name: rules[name] for name in rng.sample(sorted(rules), rng.randint(1, 2))}


def _term(rng: Random) -> Term:
    return Term(
        labels=tuple(_expression(rng) for _ in range(rng.randint(0, 2))),
        fields=(_name(rng),) if rng.random() < 0.3 else (),
    )


def _expression(rng: Random) -> Expression:
    operator: Operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    if operator in ("Gt", "Lt"):
        return Expression("size", operator, ("3",))
    return Expression("zone", operator, ("east",) if operator in ("In", "NotIn") else ())


def _name(rng: Random) -> Expression:
    operator: Operator = rng.choice(["In", "NotIn"])
    return Expression("metadata.name", operator, rng.choice([("a",), ("b", "c")]))


def request_of(key: str, step: AddRequest, priority: int = 0, tenant: str = "") -> Request:
    return Request(key, step.shape, priority, tenant, step.strategy, step.allocator)
