"""Nonsense of a driver costs the device that it is about, not the report."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.fabric import Fabric, Hca
from gpu_orchestrator.adapters.gpus.gpu import Slice
from gpu_orchestrator.api.topology import Link
from gpu_orchestrator.apps.agent.plausible import TWICE, plausible
from tests.support.agent_builders import device, look, reading


def test_what_is_plausible_stays_as_it_is() -> None:
    seen = look(
        device(0, numa=1, pci_bus_id="00000000:3B:00.0"),
        device(1, "MIG-1", Slice("1g.10gb", "GPU-7")),
        readings=[reading("GPU-0", pids=[7], used_mib=100, temperature_c=61.2, utilization_percent=50.0)],
        links=(Link("GPU-0", "MIG-1", "NVLink", 900),),
    )
    assert plausible(seen) == seen


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"used_mib": 2**44}, f"the driver says that it uses {2**44} MiB"),
        ({"used_mib": -1}, "the driver says that it uses -1 MiB"),
        ({"used_mib": -1, "problem": "it is hot"}, "it is hot"),
        ({"temperature_c": float("nan"), "utilization_percent": float("inf")}, ""),
    ],
)
def test_nonsense_about_one_device_is_its_own(told: dict[str, Any], problem: str) -> None:
    seen = plausible(look(device(0), device(1), readings=[reading("GPU-0", **told)]))
    first, second = seen.readings["GPU-0"], seen.readings["GPU-1"]
    assert (first.problem, second.problem) == (problem, "")
    assert 0 <= first.used_mib < 2**31
    assert (first.temperature_c, first.utilization_percent) == (None, None)


def test_memory_that_no_device_has() -> None:
    seen = plausible(look(replace(device(0), memory_mib=2**44), device(1)))
    assert seen.readings["GPU-0"].problem == f"the driver says that it has {2**44} MiB"
    assert seen.devices[0].memory_mib < 2**31


def test_two_devices_of_one_uuid_are_one_that_is_not_given() -> None:
    seen = plausible(look(device(0, "GPU-a"), device(1, "GPU-a"), device(2)))
    assert [(each.index, each.uuid) for each in seen.devices] == [(0, "GPU-a"), (2, "GPU-2")]
    assert {uuid: each.problem for uuid, each in seen.readings.items()} == {"GPU-a": TWICE, "GPU-2": ""}


def test_names_and_numbers_are_cut_to_what_a_report_can_hold() -> None:
    long = "x" * 2000
    seen = look(
        device(0, model=long, numa=70_000, pci_bus_id=long),
        device(1, long),
        device(2, "MIG-1", Slice(long, "GPU-0")),
        links=(Link("GPU-0", "MIG-1", "NVLink", 2**40),),
    )
    hcas = (Hca("mlx5_0", -1, 2**40), Hca("mlx5_0", 1, 1), Hca("", 1, 1))
    cut = plausible(replace(seen, fabric=Fabric(hcas)))
    first, slice_ = cut.devices
    assert (len(first.model), first.numa, len(first.pci_bus_id)) == (253, -1, 64)
    assert slice_.mig is not None
    assert len(slice_.mig.profile) == 32
    assert cut.links[0].bandwidth_gbps < 2**31
    assert [(each.ports, each.speed_gbps) for each in cut.fabric.hcas] == [(1, 1)]
