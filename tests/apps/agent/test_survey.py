"""What is seen → what is published."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.gpus.fabric import Fabric, Hca
from gpu_orchestrator.adapters.gpus.gpu import Slice
from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices
from gpu_orchestrator.api import gpunodestatus
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus, MigSlice, NodeDevice
from gpu_orchestrator.api.topology import Link
from gpu_orchestrator.apps.agent import numbering, survey, usage
from gpu_orchestrator.apps.agent.health import Condition, Fault
from gpu_orchestrator.apps.agent.survey import Findings, Look
from tests.support.agent_builders import device, look, reading

NOW = datetime(2026, 11, 18, 15, 0, tzinfo=UTC)


def surveyed(seen: Look, **found: Any) -> GpuNodeStatusStatus:
    ids = found.pop("ids", {each.uuid: each.index for each in seen.devices})
    findings = Findings(ids, found.pop("conditions", {}), found.pop("users", {}), **found)
    return survey.survey(seen, findings, NOW)


def test_whole_status() -> None:
    devices = (
        device(0, pci_bus_id="00000000:3B:00.0", numa=1),
        device(1),
        device(2, vendor="amd", model="MI300X"),
    )
    seen = look(
        *devices,
        readings=[reading("GPU-0", pids=[7], used_mib=100, utilization_percent=49.6, temperature_c=61.2)],
        links=(Link("GPU-1", "GPU-0", "NVLink", 900),),
    )
    status = surveyed(
        seen,
        users={"GPU-0": frozenset({"b", "a"})},
        conditions={"GPU-1": Condition(Fault(3, "XID 79"), 0.0)},
    )
    assert (status.total, status.healthy, status.in_use) == (3, 2, 1)
    assert (status.driver, status.observed_at) == ("570.1", "2026-11-18T15:00:00Z")
    first, second, third = status.devices
    assert first == NodeDevice(
        id=0,
        health="Healthy",
        uuid="GPU-0",
        vendor="nvidia",
        model="NVIDIA-H100-80GB-HBM3",
        memory_mib=81_920,
        bandwidth_gbps=900,
        island=0,
        numa_node=1,
        pci_bus_id="00000000:3B:00.0",
        in_use_by=["a", "b"],
        processes=1,
        used_memory_mib=100,
        utilization=50,
        temperature_c=61,
    )
    assert (second.health, second.unhealthy_reason, second.island) == ("Unhealthy", "XID 79", 0)
    assert (third.vendor, third.model, third.island) == ("amd", "MI300X", 1)
    assert status.links == [gpunodestatus.Link([0, 1], "NVLink", 900)]


def test_links_name_ids_not_indexes() -> None:
    seen = look(device(0), device(1), links=(Link("GPU-0", "GPU-1", "NVLink", 600),))
    status = surveyed(seen, ids={"GPU-0": 5, "GPU-1": 2})
    assert [each.id for each in status.devices] == [2, 5]
    assert status.links[0].pair == [2, 5]


def test_slices_and_fabric() -> None:
    slice_ = device(0, "MIG-1", Slice("1g.10gb", "GPU-0"))
    fabric = Fabric((Hca("mlx5_0", 1, 400), Hca("mlx5_1", 2, 200)), gpu_direct_rdma=True)
    status = surveyed(Look((slice_,), {}, fabric=fabric))
    assert status.devices[0].mig == MigSlice("1g.10gb", "GPU-0")
    assert (status.fabric.ports, status.fabric.speed_gbps, status.fabric.gpu_direct_rdma) == (3, 400, True)


def test_no_devices_and_strange_readings() -> None:
    assert surveyed(Look()).total == 0
    seen = look(device(0), readings=[reading(utilization_percent=250.0, temperature_c=-300.0)])
    (found,) = surveyed(seen).devices
    assert (found.utilization, found.temperature_c) == (100, -100)


def test_lost_device_is_published_as_it_was_but_unhealthy() -> None:
    was = NodeDevice(3, uuid="GPU-3", health="Healthy", memory_mib=5, in_use_by=["gone"], utilization=9)
    status = surveyed(
        look(device(0)),
        ids={"GPU-0": 0, "GPU-3": 3},
        conditions={"GPU-3": Condition(Fault(3, "lost"), 0.0)},
        lost=(was,),
    )
    found = status.devices[1]
    assert (found.id, found.health, found.unhealthy_reason, found.memory_mib) == (3, "Unhealthy", "lost", 5)
    assert (found.in_use_by, found.utilization) == ([], 0)


def test_devices_that_cannot_be_read_keep_their_users() -> None:
    """Their processes may be there still: a device without users would be given to the next pod."""
    before = surveyed(look(device(0), device(1)), users={"GPU-0": frozenset({"a"})})
    ill = {"GPU-0": Condition(Fault(3, "silent"), 0.0)}
    status = survey.unseen(before, ill, NOW)
    assert survey.unseen(status, ill, NOW + timedelta(minutes=1)) == status, "no news, so no write"
    assert [(each.health, each.in_use_by) for each in status.devices] == [
        ("Unhealthy", ["a"]),
        ("Healthy", []),
    ]
    assert (status.healthy, status.in_use, status.observed_at) == (1, 1, before.observed_at)


NOISE: dict[str, Any] = {"processes": 3, "used_memory_mib": 9, "utilization": 7, "temperature_c": 80}
NEWS: dict[str, Any] = {
    "health": "Unhealthy",
    "unhealthy_reason": "x",
    "unhealthy_since": "2026-11-18T15:00:00Z",
    "recovered_at": "2026-11-18T15:00:00Z",
    "relapses": 1,
    "in_use_by": ["a"],
    "memory_mib": 1,
    "island": 1,
    "bandwidth_gbps": 1,
    "uuid": "GPU-9",
}


@pytest.mark.parametrize(
    ("changed", "is_news"), [*((each, False) for each in NOISE), *((each, True) for each in NEWS)]
)
def test_noise_is_not_news(changed: str, is_news: bool) -> None:
    old = surveyed(look(device(0)))
    fields = {changed: (NOISE | NEWS)[changed]}
    new = msgspec.structs.replace(old, devices=[msgspec.structs.replace(old.devices[0], **fields)])
    assert survey.differs(old, new) is is_news
    assert not survey.differs(old, msgspec.structs.replace(old, observed_at="later"))


def test_ids_stay_with_their_uuids() -> None:
    known = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    # GPU-b dropped out, and the driver numbers the others again.
    assert numbering.assign(known, [device(0, "GPU-a"), device(1, "GPU-c")]) == known


def test_new_device_gets_its_index_or_the_lowest_free_id() -> None:
    found = numbering.assign({"GPU-a": 1}, [device(0, "GPU-b"), device(1, "GPU-c"), device(7, "GPU-d")])
    assert found == {"GPU-a": 1, "GPU-b": 0, "GPU-c": 2, "GPU-d": 7}


def test_more_devices_than_ids() -> None:
    known = {f"GPU-{n}": n for n in range(1024)}
    assert numbering.assign(known, [device(3, "GPU-new")]) == known


def test_users_are_those_of_processes_and_of_the_kubelet() -> None:
    seen = look(
        device(0),
        device(1, pci_bus_id="00000000:3B:00.0"),
        readings=[reading("GPU-0", pids=[7, 8, 9])],
        pods={7: "pod-a", 8: "pod-a"},
    )
    assert usage.of_processes(seen) == {"GPU-0": frozenset({"pod-a"})}
    assert usage.of_processes(seen, without="pod-a") == {}, "the agent's own daemons"
    given = [
        GivenDevices("ns", "b", "nvidia.com/gpu", ("GPU-0",)),
        GivenDevices("ns", "b", "nvidia.com/gpu.shared", ("gpu-0::3",)),
        GivenDevices("ns", "b", "amd.com/gpu", ("0000:3b:00.0",)),
        GivenDevices("ns", "b", "nvidia.com/gpu", ("GPU-unknown",)),
        GivenDevices("ns", "b", "example.com/rdma", ("GPU-1",)),
        GivenDevices("ns", "unknown", "nvidia.com/gpu", ("GPU-1",)),
    ]
    b, unknown = ("ns", "b"), ("ns", "unknown")
    assert usage.of_kubelet(seen, given) == {"GPU-0": [b], "GPU-1": [b, unknown]}
    assert usage.unplaced(seen, given) == set(), "some of what it got is known"
    users = {"GPU-0": frozenset({"pod-b"})}
    assert usage.joined(usage.of_processes(seen), users)["GPU-0"] == frozenset({"pod-a", "pod-b"})


def test_plugin_of_gke_names_device_files() -> None:
    seen = look(device(0, minor=1), device(1, minor=0), device(2))
    given = [
        GivenDevices("ns", "a", "nvidia.com/gpu", ("nvidia1",)),
        GivenDevices("ns", "b", "nvidia.com/gpu", ("nvidia0/vgpu1",)),
        GivenDevices("ns", "c", "nvidia.com/gpu", ("nvidia0/gi3",)),
        GivenDevices("ns", "d", "nvidia.com/gpu", ("nvidia2",)),
        GivenDevices("ns", "e", "example.com/rdma", ("nic0",)),
    ]
    assert usage.of_kubelet(seen, given) == {"GPU-0": [("ns", "a")], "GPU-1": [("ns", "b")]}
    assert usage.unplaced(seen, given) == {("ns", "c"), ("ns", "d")}
