"""Slices of GPUs (MIG): who gets them, what they count for, and why a request does not fit."""

from random import Random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, why_not
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.request import request
from gpu_orchestrator.policies.registry import Registry

REGISTRY = Registry()


def a_slice(number: int, profile: str = "1g", milli: int = 142, **more: Any) -> Device:
    return Device(number, vendor="nvidia", profile=profile, milli=milli, **more)


def cut(name: str, *, whole: int = 0, slices: int = 3, **more: Any) -> Node:
    gpus = [Device(at, vendor="nvidia") for at in range(whole)]
    return node(name, [*gpus, *(a_slice(at, **more) for at in range(whole, whole + slices))])


@pytest.mark.parametrize(
    ("seen", "asked", "reason"),
    [
        pytest.param(cut("a"), {}, "have only slices of GPUs (MIG)", id="a GPU where there are slices"),
        pytest.param(cut("a"), {"shared": True, "share": 10}, "have only slices of GPUs (MIG)", id="a share"),
        pytest.param(node("a", 2), {"profile": "1g"}, "have no 1g slice", id="a slice where there are none"),
        pytest.param(cut("a"), {"profile": "3g"}, "have no 3g slice", id="another profile"),
        pytest.param(
            cut("a"), {"profile": "1g", "gpus": 4}, "have fewer than 4 free 1g slices", id="too many"
        ),
        pytest.param(cut("a", healthy=False), {"profile": "1g"}, "have no healthy 1g slice", id="unhealthy"),
        pytest.param(node("a"), {"profile": "1g"}, "have no GPU", id="no GPU"),
    ],
)
def test_reason(seen: Node, asked: dict[str, Any], reason: str) -> None:
    refusal = why_not(request("r", **asked).shape, Cluster([seen]), REGISTRY.policy())
    assert refusal is not None
    assert refusal.reasons == ((reason, 1),)


def test_pods_with_slices_are_packed_and_whole_gpus_stay_whole() -> None:
    """The node that is fuller already, also where only its slices are taken."""
    cluster = Cluster([cut("a", whole=1), cut("b", whole=1), node("c", 2)])
    cluster.place(Placement("first", "b", devices=(1,)))
    policy = REGISTRY.policy("binPack")
    for key in ("second", "third"):
        found = decide(request(key, profile="1g"), cluster, policy, Random(1))
        assert isinstance(found, Placement)
        assert found.node == "b"
        cluster.place(found)
    assert (cluster.free_gpus("b"), cluster.free_slices("b"), cluster.free_slices("a")) == (1, 0, 3)


def test_share_of_a_slice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a slice has one holder"):
        request("r", share=100, profile="1g")
