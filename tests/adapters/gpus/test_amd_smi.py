"""AMD's library where a host has it: its readings win over those of sysfs, and what it lacks is left to
sysfs.

The library is one that answers as the documentation of ROCm 6 describes; no host of ours has AMD's.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus import amd_smi
from gpu_orchestrator.adapters.gpus.amd import Amd
from gpu_orchestrator.adapters.gpus.amd_smi import AmdSmi
from tests.support import sysfs_tree


class Unsupported(Exception):
    pass


def unsupported(*_: Any) -> Any:
    raise Unsupported("AMDSMI_STATUS_NOT_SUPPORTED")


def library() -> Any:
    """Know two of the boards, the second of them badly."""
    known = {"0000:05:00.0": "AMD Instinct MI300X OAM", "0000:26:00.0": "AMD Instinct MI300X OAM"}
    return SimpleNamespace(
        amdsmi_get_processor_handles=lambda: list(known),
        amdsmi_get_gpu_device_bdf=lambda handle: handle.upper(),
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": known[handle]},
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 55, "umc_activity": "N/A"},
        amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 140},
        amdsmi_get_gpu_total_ecc_count=lambda _: {"correctable_count": 9, "uncorrectable_count": 2},
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
        amdsmi_get_pcie_info=unsupported,
        amdsmi_get_clock_info=lambda handle, kind: {"clk": 1300 if kind == "mem" else 2000},
        AmdSmiClkType=SimpleNamespace(GFX="gfx", MEM="mem"),
        amdsmi_shut_down=lambda: None,
    )


def test_library_adds_to_what_sysfs_says(tmp_path: Path) -> None:
    gpus = Amd(sysfs_tree.unpack("mi300x", tmp_path), lambda: AmdSmi(library()))
    alone = Amd(tmp_path, lambda: None)
    assert [device.uuid for device in gpus.devices()] == [device.uuid for device in alone.devices()]
    assert [device.model for device in gpus.devices()[1:3]] == [
        "AMD Instinct MI300X OAM",
        "AMD Instinct MI300X",
    ]
    now, before = gpus.readings()[1], alone.readings()[1]
    assert (now.utilization_percent, now.power_w) == (55.0, 140.0)
    assert now.energy_j == pytest.approx(30.6)
    assert (now.ecc_errors, now.ecc_corrected) == (2, 9)
    assert (now.sm_clock_mhz, now.memory_clock_mhz) == (2000, 1300)
    assert (now.memory_utilization_percent, now.pcie_replays, now.temperature_c) == (12.0, 0, 61.0), (
        "of sysfs"
    )
    assert (now.used_mib, now.processes) == (before.used_mib, before.processes)
    assert gpus.readings()[4] == alone.readings()[4], "a board that the library does not know"
    gpus.close()


def test_library_that_the_host_does_not_have_is_not_used() -> None:
    assert amd_smi.find() is None


def test_library_that_does_not_start_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so not found')")
    monkeypatch.syspath_prepend(tmp_path)
    assert amd_smi.find() is None
