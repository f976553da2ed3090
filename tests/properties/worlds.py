"""Small clusters and requests of every kind, for hypothesis to draw from."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Node, Taint, node
from gpu_orchestrator.core.request import Expression, Fabric, HostPort, Request, Shape, Term, Toleration

NAMES = ("a", "b", "c", "d")
ZONES = ("east", "west")
BANDWIDTHS = (0, 0, 100, 300, 600)


seldom = st.integers(0, 7).map(lambda n: n == 7)
mostly = seldom.map(lambda flag: not flag)


@st.composite
def nodes(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> Node:
    alike = draw(st.booleans())
    count = draw(st.integers(0, 4))
    kinds = [_device(draw, 0 if alike else i) for i in range(1 if alike else count)]
    devices = [
        Device(i, vendor=k.vendor, model=k.model, memory_mib=k.memory_mib, healthy=draw(mostly), numa=i % 2)
        for i in range(count)
        for k in [kinds[0 if alike else i]]
    ]
    pairs = [(a, b) for a in range(count) for b in range(a)]
    return node(
        draw(st.sampled_from(names)),
        devices,
        links={pair: draw(st.sampled_from(BANDWIDTHS)) for pair in pairs},
        resources={"cpu": draw(st.integers(0, 4)), "odd": draw(st.integers(0, 1))},
        labels=draw(_labels),
        taints=draw(_taints),
        ready=draw(mostly),
        schedulable=draw(mostly),
        barred="are barred" if draw(seldom) else "",
        rdma_ports=draw(st.integers(0, 2)),
        cufile=draw(st.booleans()),
    )


def _device(draw: st.DrawFn, at: int) -> Device:
    vendor, model = draw(st.sampled_from([("nvidia", "A"), ("nvidia", "B"), ("amd", "M")]))
    return Device(at, vendor=vendor, model=model, memory_mib=draw(st.sampled_from([0, 16, 80])))


_labels = st.fixed_dictionaries(
    {}, optional={"zone": st.sampled_from(ZONES), "size": st.sampled_from(["1", "5", "x"])}
)
_taints: st.SearchStrategy[list[Taint]] = st.lists(
    st.builds(
        Taint, st.just("gpu"), st.sampled_from(["", "x"]), st.sampled_from(["NoSchedule", "PreferNoSchedule"])
    ),
    max_size=1,
) | st.just([])
_expressions = st.one_of(
    st.builds(Expression, st.just("zone"), st.sampled_from(["In", "NotIn"]), st.just(("east",))),
    st.builds(Expression, st.sampled_from(["zone", "size"]), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Expression, st.just("size"), st.sampled_from(["Gt", "Lt"]), st.just(("3",))),
)
_names = st.builds(
    Expression,
    st.just("metadata.name"),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from([("a",), ("b", "c")]),
)
_terms = st.builds(
    Term, st.lists(_expressions, max_size=2).map(tuple), st.just(()) | _names.map(lambda each: (each,))
)
_tolerations = st.sampled_from(
    [(), (Toleration(operator="Exists"),), (Toleration("gpu", "Equal", "x"),), (Toleration("gpu", "Exists"),)]
)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    exclusive = draw(st.booleans())
    milli = 1000 if exclusive else draw(st.sampled_from([0, 200, 500, 1000]))
    memory = draw(st.sampled_from([0, 0, 8, 40])) if exclusive or milli else draw(st.sampled_from([8, 40]))
    plain = draw(st.booleans())
    return Shape(
        gpus=draw(st.integers(0, 3)),
        exclusive=exclusive,
        milli=milli,
        memory_mib=memory,
        mode=draw(st.sampled_from(["Required", "Preferred", "Ignore"])),
        min_bandwidth_gbps=draw(st.sampled_from([0, 300])),
        prefer_ids=draw(st.sampled_from([(), (2, 1)])),
        resources=draw(st.sampled_from([(), (("cpu", 1),), (("cpu", 2), ("odd", 1)), (("unheard", 1),)])),
        tolerations=draw(_tolerations),
        **({} if plain else _pickiness(draw)),
    )


def _pickiness(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "vendor": draw(st.sampled_from(["", "", "amd"])),
        "models": draw(st.sampled_from([(), (), ("A",), ("A", "M")])),
        "labels": draw(st.sampled_from([(), (), (("zone", "east"),)])),
        "affinity": tuple(draw(st.lists(_terms, max_size=2))),
        "host_ports": draw(st.sampled_from([(), (), (HostPort(80),), (HostPort(80, ip="10.0.0.1"),)])),
        "fabric": draw(
            st.sampled_from([Fabric(), Fabric(), Fabric(rdma=True), Fabric(min_ports=2, cufile=True)])
        ),
    }


@dataclass(frozen=True)
class See:
    node: Node


@dataclass(frozen=True)
class Lose:
    name: str


@dataclass(frozen=True)
class Ask:
    shape: Shape
    strategy: str
    allocator: str


@dataclass(frozen=True)
class Free:
    """Release the n-th of what is held."""

    which: int


STRATEGIES = ("leastLoaded", "random", "costOptimized", "binPack", "topology")
ALLOCATORS = ("contiguous", "spread", "preferIds", "packed")

# A few shapes that come again, so that remembered answers are used and mended.
steps = st.lists(shapes(), min_size=1, max_size=4).flatmap(
    lambda few: st.lists(
        st.one_of(
            st.builds(See, nodes()),
            st.builds(Lose, st.sampled_from(NAMES)),
            st.builds(Free, st.integers(0, 9)),
            *[st.builds(Ask, st.sampled_from(few), st.sampled_from(STRATEGIES), st.sampled_from(ALLOCATORS))]
            * 3,
        ),
        max_size=14,
    )
)
clusters = st.lists(nodes(), min_size=1, max_size=4, unique_by=lambda each: each.name)


def asked(key: str, step: Ask, priority: int = 0, tenant: str = "") -> Request:
    return Request(key, step.shape, priority, tenant, step.strategy, step.allocator)
