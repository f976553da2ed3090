"""A node's devices from its agent's report, from an annotation, or from its own count."""

import json
from typing import Any

import pytest

from gpu_orchestrator.api import inventory, nodedevices
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="broken"),
        pytest.param("null", id="null"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"x":' * 50_000 + "1" + "}" * 50_000, id="deep in a field we do not know"),
        pytest.param('{"count": 1e9}', id="too many"),
        pytest.param(f'{{"count": {"9" * 5000}}}', id="long digits"),
        pytest.param('{"count": -1}', id="negative"),
        pytest.param('{"count": NaN}', id="NaN"),
        pytest.param('{"count": "8"}', id="text for a number"),
        pytest.param('{"count": 8, "islands": [[0, 1], [1, 2]]}', id="a device twice"),
        pytest.param('{"count": 8, "islands": [[0, 1024]]}', id="an id out of range"),
        pytest.param('{"count": 8, "islands": [[-1, 0]]}', id="a negative id"),
        pytest.param('{"count": 8, "islands": null}', id="null islands"),
        pytest.param('{"count": 8, "memoryMiB": 16777217}', id="impossible memory"),
        pytest.param('{"count": 8, "bandwidthGBps": 2147483648}', id="impossible bandwidth"),
        pytest.param('{"count": 8, "vendor": "acme"}', id="unknown vendor"),
        pytest.param(f'{{"count": 8, "model": "{"x" * 254}"}}', id="long model"),
    ],
)
@pytest.mark.parametrize("gpus", [0, 8])
def test_annotation_that_cannot_be_used_bars_the_node(text: str, gpus: int) -> None:
    found = inventory.node_of(node("a", gpus, annotations={"gpu.scheduling/devices": text}))
    assert found.barred == nodedevices.UNREADABLE
    assert len(found.devices) == gpus


NUMBERED = '{"count": 8}'


@pytest.mark.parametrize(
    ("labels", "gives", "why"),
    [
        pytest.param({}, {"nvidia.com/gpu": "8"}, "", id="no labels"),
        pytest.param({"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "8"}, "", id="same count"),
        pytest.param(
            {"nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"},
            {"nvidia.com/gpu": "8"},
            "",
            id="not shared",
        ),
        pytest.param({"nvidia.com/mig.strategy": "single"}, {"nvidia.com/gpu": "8"}, "", id="MIG not in use"),
        pytest.param(
            {"amd.com/compute-memory-partition": "spx_nps1"}, {"amd.com/gpu": "8"}, "", id="AMD, whole"
        ),
        pytest.param({"nvidia.com/gpu.count": "8"}, {"amd.com/gpu": "4"}, "", id="labels of another vendor"),
        pytest.param(
            {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "10"},
            {"nvidia.com/gpu": "80"},
            nodedevices.SHARED,
            id="time-slicing",
        ),
        pytest.param(
            {"nvidia.com/gpu.replicas": "\u0661"},
            {"nvidia.com/gpu": "8"},
            nodedevices.SHARED,
            id="odd number",
        ),
        pytest.param(
            {"nvidia.com/gpu.sharing-strategy": "mps"}, {"nvidia.com/gpu": "8"}, nodedevices.SHARED, id="MPS"
        ),
        pytest.param(
            {"nvidia.com/mig-1g.10gb.sharing-strategy": "time-slicing"},
            {"nvidia.com/gpu": "8"},
            nodedevices.SHARED,
            id="shared slices",
        ),
        pytest.param(
            {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"},
            {"nvidia.com/gpu": "8"},
            nodedevices.SHARED,
            id="shared on GKE",
        ),
        pytest.param({}, {"nvidia.com/gpu.shared": "80"}, nodedevices.SHARED, id="shared, renamed"),
        pytest.param(
            {"nvidia.com/mig.strategy": "mixed"}, {"nvidia.com/gpu": "6"}, nodedevices.SLICED, id="MIG mixed"
        ),
        pytest.param(
            {}, {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"}, nodedevices.SLICED, id="MIG slices"
        ),
        pytest.param({}, {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}, "", id="no slice left"),
        pytest.param(
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu.count": "56"},
            {"nvidia.com/gpu": "56"},
            nodedevices.SLICED,
            id="MIG single",
        ),
        pytest.param(
            {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"},
            {"nvidia.com/gpu": "7"},
            nodedevices.SLICED,
            id="MIG on GKE",
        ),
        pytest.param(
            {"amd.com/compute-memory-partition": "cpx_nps4"},
            {"amd.com/gpu": "64"},
            nodedevices.SLICED,
            id="AMD partitions",
        ),
        pytest.param({}, {"amd.com/cpx_nps4": "64"}, nodedevices.SLICED, id="AMD partitions, renamed"),
        pytest.param(
            {"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "6"}, nodedevices.MISCOUNTED, id="other count"
        ),
        pytest.param(
            {"nvidia.com/gpu.count": "9" * 60},
            {"nvidia.com/gpu": "8"},
            nodedevices.MISCOUNTED,
            id="impossible count",
        ),
        pytest.param(
            {"gpu.intel.com/device-id.0380-56c1.count": "1"},
            {"gpu.intel.com/i915": "10"},
            nodedevices.MISCOUNTED,
            id="Intel, shared",
        ),
        pytest.param(
            {"gpu.intel.com/device-id.0380-56c1.count": "2", "gpu.intel.com/device-id.0380-0bd5.count": "1"},
            {"gpu.intel.com/xe": "3"},
            "",
            id="Intel, whole",
        ),
    ],
)
def test_devices_are_numbered_only_where_that_is_true(
    labels: dict[str, str], gives: dict[str, str], why: str
) -> None:
    assert inventory.node_of(node("a", 0, labels=labels, gives=gives)).barred == why
    for word in ("the agent", "gpu.scheduling/devices") if why else ():
        assert word in why
    written = {"gpu.scheduling/devices": NUMBERED}
    annotated = inventory.node_of(node("a", 0, labels=labels, gives=gives, annotations=written))
    assert (annotated.barred, [device.id for device in annotated.devices]) == ("", list(range(8)))
    reported = inventory.node_of(node("a", 0, labels=labels, gives=gives), report("a", {"id": 3}))
    assert (reported.barred, [device.id for device in reported.devices]) == ("", [3])


@pytest.mark.parametrize("text", [None, NUMBERED])
def test_unhealthy_device_bars_the_node_until_an_agent_reports_which(text: str | None) -> None:
    """A device plugin takes an unhealthy device off `allocatable` and leaves it in `capacity`."""
    written = {"gpu.scheduling/devices": text} if text else {}
    sick = node("a", 7, capacity={"nvidia.com/gpu": "8"}, annotations=written)
    assert inventory.node_of(sick).barred == nodedevices.UNHEALTHY
    gone = node("a", 0, capacity={"nvidia.com/gpu": "8"}, annotations=written)
    assert inventory.node_of(gone).barred == nodedevices.UNHEALTHY
    assert inventory.node_of(sick, report("a", {"id": 0}, {"id": 1, "health": "Unhealthy"})).barred == ""
    well = node("a", 8, capacity={"nvidia.com/gpu": "8"}, annotations=written)
    assert inventory.node_of(well).barred == ""


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(node("a", 0, gives={"nvidia.com/gpu": "1025"}), id="too many GPUs"),
        pytest.param(node("a", 8, capacity={"nvidia.com/gpu": "-8"}), id="negative capacity"),
        pytest.param(node("a", 8, gives={"memory": "1e99"}), id="huge memory"),
    ],
)
def test_node_that_cannot_be_counted_is_barred(seen: Node) -> None:
    assert inventory.node_of(seen, barred="have a reason").barred.startswith("cannot be counted: ")


def test_report_that_cannot_be_counted_bars_the_node() -> None:
    found = inventory.node_of(node("a", 8), report("a", {"id": 0, "memoryMiB": 2**31 - 1}))
    assert found.barred == "cannot be counted: node a has 2147483647 MiB on device 0; it can be 0 to 16777216"


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
    assert [(each.id, each.healthy, each.profile, each.milli) for each in found.devices] == [
        (0, False, "", 1000),
        (1, True, "1g.10gb", 142),
        (2, True, "", 1000),
    ]
    assert inventory.milligpu(found) == 1142


def test_slices_of_an_unhealthy_gpu_are_not_given() -> None:
    part = {"profile": "3g.40gb", "parent": "GPU-0"}
    sick = {"id": 0, "uuid": "GPU-0", "health": "Unhealthy", "unhealthyReason": "XID 79"}
    found = inventory.node_of(node("a", 8), report("a", sick, {"id": 1, "uuid": "MIG-1", "mig": part}))
    assert [device.healthy for device in found.devices] == [False, False]


def test_devices_used_by_each_pod() -> None:
    reported = report("a", {"id": 0, "inUseBy": ["p", "q"]}, {"id": 1, "inUseBy": ["p"]})
    assert inventory.used_by(reported) == {"p": (0, 1), "q": (0,)}
    assert inventory.used_by(None) == {}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(node("a", 2, labels={"gpu.scheduling/mode": "plugin"}), id="countable"),
        pytest.param(
            node("a", 2, labels={"gpu.scheduling/mode": "plugin", "nvidia.com/gpu.replicas": "4"}),
            id="that could take no claims anyway",
        ),
    ],
)
def test_node_kept_for_a_device_plugin_takes_no_claims(seen: Node) -> None:
    """Also if an agent reports its devices: it is the administrator's word."""
    for found in (inventory.node_of(seen), inventory.node_of(seen, report("a", {"id": 0}))):
        assert found.barred == "are kept for a device plugin (label gpu.scheduling/mode)"


@pytest.mark.parametrize("mode", ["claims", "", "Plugin"])
def test_node_in_another_mode_takes_claims(mode: str) -> None:
    found = inventory.node_of(node("a", 2, labels={"gpu.scheduling/mode": mode}), barred="")
    assert (found.barred, len(found.devices)) == ("", 2)


@pytest.mark.parametrize("mode", ["claims", ""])
def test_mode_claims_does_not_hide_the_devices_of_a_plugins_pods(mode: str) -> None:
    seen = node("a", 2, labels={"gpu.scheduling/mode": mode})
    assert inventory.node_of(seen, barred=inventory.PLUGIN_UNREPORTED).barred == inventory.PLUGIN_UNREPORTED


def test_device_of_another_node_is_not_given() -> None:
    reported = report("a", {"id": 0, "uuid": "GPU-0"}, {"id": 1, "uuid": "GPU-1"})
    found = inventory.node_of(node("a", 8), reported, duplicates=[1])
    assert [(device.id, device.healthy) for device in found.devices] == [(0, True), (1, False)]
    assert inventory.milligpu(found) == 1000
    barred = inventory.node_of(node("a", 8), reported, duplicates=[0, 1])
    assert (barred.barred, inventory.milligpu(barred)) == (inventory.DUPLICATES, None)


HEALTHS: list[dict[str, Any]] = [
    {"id": 0},
    {"id": 1, "health": "Unhealthy"},
    {"id": 2, "health": "Unknown"},
    {"id": 3},
]


@pytest.mark.parametrize(
    ("seen", "reported", "number"),
    [
        pytest.param(node("a", 8), None, 8000, id="counted by a device plugin"),
        pytest.param(node("a", 8), report("a", *HEALTHS), 2000, id="healthy ones of a report"),
        pytest.param(node("a", 0), report("a", HEALTHS[1]), 0, id="devices, and none of them healthy"),
        pytest.param(node("a", 0), None, None, id="no devices"),
        pytest.param(node("a", 8), report("a"), None, id="a report of no devices"),
        pytest.param(
            node("a", 8, labels={"nvidia.com/gpu.replicas": "4"}), None, None, id="devices without numbers"
        ),
        pytest.param(
            node("a", 8, labels={"gpu.scheduling/mode": "plugin"}), None, None, id="for a device plugin"
        ),
        pytest.param(node("a", 8, labels={"gpu.scheduling/mode": "claims"}), None, 8000, id="for claims"),
        pytest.param(
            node("a", 0, annotations={"gpu.scheduling/devices": '{"count": 3}'}), None, 3000, id="annotated"
        ),
    ],
)
def test_milligpu_of_a_node(seen: Node, reported: GpuNodeStatus | None, number: int | None) -> None:
    assert inventory.milligpu(inventory.node_of(seen, reported)) == number
