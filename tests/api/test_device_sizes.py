"""How large devices are, from what nodes say about them."""

import json
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import translate
from gpu_orchestrator.api.device_sizes import DeviceSizes
from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.kubernetes import Node
from tests.support.operator_builders import node

A100, H100 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-H100-80GB-HBM3"


def labelled(name: str, model: str, mib: int) -> Node:
    return node(name, labels={"nvidia.com/gpu.product": model, "nvidia.com/gpu.memory": str(mib)})


def written(name: str, **devices: Any) -> Node:
    return node(name, 0, annotations={"gpu.scheduling/devices": json.dumps(devices)})


def asks(**devices: Any) -> DeviceWish:
    return msgspec.convert({"exclusivity": "Shared", "memoryMiB": 1000, **devices}, DeviceWish)


def sizes_of(*nodes: Node) -> DeviceSizes:
    made = DeviceSizes()
    for each in nodes:
        see(made, each)
    return made


def see(sizes: DeviceSizes, seen: Node) -> None:
    sizes.put(seen.metadata.name, (translate.kind(seen),))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(asks(), 196_608, id="any device"),
        pytest.param(asks(model=A100), 40_960, id="of that model"),
        pytest.param(asks(model="none"), 0, id="of a model that no node has"),
        pytest.param(asks(vendor="nvidia"), 81_920, id="of that vendor"),
        pytest.param(asks(share=10), 196_608, id="beside a share"),
        pytest.param(asks(share=10, memoryMiB=None), 0, id="does not depend on it"),
        pytest.param(DeviceWish(), 0, id="whole devices"),
    ],
)
def test_largest_device_that_a_claim_could_get(asked: DeviceWish, expected: int) -> None:
    sizes = sizes_of(
        labelled("a", A100, 40_960),
        labelled("b", H100, 81_920),
        written("c", count=8, vendor="amd", memoryMiB=196_608),
        node("d"),
    )
    assert sizes.largest_mib(asked) == expected


def test_node_that_changed_or_is_gone_no_longer_counts() -> None:
    sizes = sizes_of(labelled("a", A100, 40_960), labelled("b", H100, 81_920), labelled("c", H100, 81_920))
    sizes.put("b")
    assert sizes.largest_mib(asks()) == 81_920
    see(sizes, labelled("c", A100, 20_480))
    assert sizes.largest_mib(asks()) == 40_960
    sizes.put("a")
    sizes.put("c")
    sizes.put("never seen")
    assert sizes.largest_mib(asks()) == 0
