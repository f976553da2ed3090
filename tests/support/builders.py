"""Builders of core values for tests, with defaults for everything but the point of the test."""

from collections.abc import Iterable, Mapping

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.request import request

__all__ = ["cluster", "links", "node", "placed", "request", "shared", "takes", "two_islands", "whole"]


def cluster(*nodes: Node, held: Iterable[Placement] = ()) -> Cluster:
    made = Cluster(nodes)
    for placement in held:
        made.place(placement)
    return made


def whole(key: str, node: str, *devices: int) -> Placement:
    """Return a placement that holds whole devices."""
    return Placement(key, node, devices=devices)


def shared(key: str, node: str, device: int, *, milli: int = 0, memory_mib: int = 0) -> Placement:
    """Return a placement that holds a share of one device."""
    return Placement(key, node, devices=(device,), exclusive=False, milli=milli, memory_mib=memory_mib)


def takes(key: str, node: str, resources: Mapping[str, int]) -> Placement:
    """Return a placement that holds resources without devices."""
    return Placement(key, node, resources=tuple(sorted(resources.items())))


def placed(answer: Placement | Refusal) -> tuple[str, tuple[int, ...]]:
    """Return node and devices of an answer that must be a placement."""
    assert isinstance(answer, Placement), answer
    return answer.node, answer.devices


def links(*groups: Iterable[int], gbps: int = 600) -> dict[tuple[int, int], int]:
    """Link every pair inside each group."""
    return {(a, b): gbps for group in map(tuple, groups) for a in group for b in group if a < b}


def two_islands(size: int = 4, gbps: int = 600) -> dict[tuple[int, int], int]:
    """Link devices 0..size-1 with each other, and the next `size` likewise."""
    return links(range(size), range(size, 2 * size), gbps=gbps)
