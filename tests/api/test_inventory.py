"""A node's devices from its agent's report, from an annotation, or from its own count."""

import json

from gpu_orchestrator.api import inventory
from tests.support.scheduler_objects import node, report

ISLANDS = {"islands": [[0, 1], [2, 3]], "bandwidthGBps": 600, "model": "A100", "memoryMiB": 81_920}


def test_devices_from_the_nodes_count() -> None:
    found = inventory.node_of(node("a", 2))
    assert [device.id for device in found.devices] == [0, 1]
    assert {device.vendor for device in found.devices} == {"nvidia"}


def test_devices_from_the_annotation_without_a_plugin() -> None:
    written = {"gpu.scheduling/devices": json.dumps({**ISLANDS, "count": 5, "vendor": "amd"})}
    found = inventory.node_of(node("a", 0, annotations=written))
    assert [(device.id, device.island) for device in found.devices] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (4, -1),
    ]
    assert {(device.vendor, device.model) for device in found.devices} == {("amd", "A100")}
    assert found.topology.bandwidth[0][:3] == (0, 600, 0)


def test_unreadable_annotation_gives_no_devices() -> None:
    assert inventory.node_of(node("a", 0, annotations={"gpu.scheduling/devices": "{"})).devices == ()


def test_report_wins_over_count() -> None:
    reported = report(
        "a",
        {"id": 0, "uuid": "GPU-0", "model": "H100", "memoryMiB": 100},
        {"id": 3, "uuid": "GPU-3", "health": "Unhealthy"},
        links=[{"pair": [0, 3], "type": "NVLink", "bandwidthGBps": 900}],
        fabric={"ports": 4, "gpuDirectRDMA": True, "cuFile": True},
    )
    found = inventory.node_of(node("a", 8), reported, barred="have a reason")
    assert [(device.id, device.uuid, device.healthy) for device in found.devices] == [
        (0, "GPU-0", True),
        (3, "GPU-3", False),
    ]
    assert found.topology.bandwidth == ((0, 900), (900, 0))
    assert (found.rdma_ports, found.cufile, found.barred) == (4, True, "have a reason")


def test_sliced_gpu_and_its_slices_are_not_given_whole() -> None:
    reported = report(
        "a",
        {"id": 0, "uuid": "GPU-0"},
        {"id": 1, "uuid": "MIG-1", "mig": {"profile": "1g.10gb", "parent": "GPU-0"}},
        {"id": 2, "uuid": "GPU-2"},
    )
    found = inventory.node_of(node("a", 8), reported)
    assert [(device.id, device.healthy) for device in found.devices] == [(0, False), (2, True)]


def test_devices_used_by_each_pod() -> None:
    reported = report("a", {"id": 0, "inUseBy": ["p", "q"]}, {"id": 1, "inUseBy": ["p"]})
    assert inventory.used_by(reported) == {"p": (0, 1), "q": (0,)}
    assert inventory.used_by(None) == {}
