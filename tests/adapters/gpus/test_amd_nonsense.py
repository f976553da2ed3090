"""One file of AMD's driver with nonsense in it costs at most its own device, or the fact that it has."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus.amd import Amd
from gpu_orchestrator.adapters.gpus.amd_smi import AmdSmi
from gpu_orchestrator.adapters.gpus.fabric import Hca
from gpu_orchestrator.adapters.gpus.gpu import Reading
from tests.adapters.gpus.test_amd_smi import library
from tests.support import sysfs_tree

PCI = "sys/bus/pci/devices/0000:26:00.0"
KFD = "sys/class/kfd/kfd/topology/nodes/3"
RDMA = "sys/class/infiniband/mlx5_0/ports/1"
OWN = 1
"""The device that these files are of."""
FILES = {
    "who it is": (f"{KFD}/properties", f"{KFD}/gpu_id"),
    "whether it answers": (f"{PCI}/mem_info_vram_used",),
    "all else": (
        *(f"{PCI}/{name}" for name in ("gpu_busy_percent", "ras/umc_err_count", "numa_node", "product_name")),
        *(f"{PCI}/{name}" for name in ("max_link_speed", "max_link_width", "pcie_replay_count")),
        *(f"{PCI}/hwmon/hwmon5/{name}" for name in ("temp2_input", "temp3_label", "power1_input")),
        *(f"{KFD}/{name}/0/properties" for name in ("mem_banks", "io_links")),
        *(f"{RDMA}/{name}" for name in ("state", "rate")),
        "sys/class/kfd/kfd/proc/31337/vram_29852",
        "sys/module/amdgpu/version",
        "proc/driver/nvidia/version",
    ),
}
"""Apart, as one of the first keeps the rest from being read."""
NONSENSE = {
    "binary": b"\xff\xfe\x00\x80",
    "empty": b"",
    "negative": b"-5\n",
    "beyond 64 bits": str(2**64).encode(),
    "long": b"9" * 4000,
    "longer than Python reads": b"9" * 5000,
    "dots": b"...\n",
    "counters": b"ue: " + b"9" * 5000 + b"\nce: -3\n",
    "properties": b"simd_count 4\nsize_in_bytes " + b"9" * 4000 + b"\nlocation_id -1\n",
}


def spoil(path: Path, nonsense: bytes | None) -> None:
    """Put it into the file; None puts a folder in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if nonsense is None:
        path.mkdir()
    else:
        path.write_bytes(nonsense)


def look(root: Path) -> tuple[Reading, ...]:
    """Read everything; return how the devices are."""
    gpus = Amd(root, lambda: None)
    gpus.devices()
    gpus.links()
    gpus.fabric()
    return gpus.readings()


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
@pytest.mark.parametrize("nonsense", [*NONSENSE.values(), None], ids=[*NONSENSE, "folder"])
def test_nonsense_of_a_device_costs_that_device_at_most(
    tmp_path: Path, nonsense: bytes | None, files: tuple[str, ...]
) -> None:
    root = sysfs_tree.unpack("mi300x", tmp_path)
    gpus = Amd(root, lambda: None)
    known = [device.uuid for device in gpus.devices()]
    well = {each.uuid: each for each in gpus.readings() if each.uuid != known[OWN]}
    for name in files:
        spoil(root / name, nonsense)
    now = {each.uuid: each for each in look(root)}
    assert {uuid: now.get(uuid) for uuid in well} == well
    assert {device.uuid for device in gpus.devices()} >= set(known)


def test_device_that_does_not_tell_its_memory_says_why(tmp_path: Path) -> None:
    gpus = Amd(sysfs_tree.unpack("mi300x", tmp_path), lambda: None)
    gpus.devices()
    (tmp_path / PCI / "mem_info_vram_used").write_text(str(2**70))
    problem = "the driver does not answer: a number of 71 bits, where 64 are the most"
    assert [each.problem for each in gpus.readings()] == ["", problem] + [""] * 6


def test_port_without_a_sensible_rate_is_there_without_it(tmp_path: Path) -> None:
    gpus = Amd(sysfs_tree.unpack("mi300x", tmp_path), lambda: None)
    (tmp_path / RDMA / "rate").write_text("9" * 5000)
    assert gpus.fabric().hcas[0] == Hca("mlx5_0", 1, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**70, 2**1024, "N/A", None])
def test_nonsense_of_the_library_is_left_to_sysfs(tmp_path: Path, value: object) -> None:
    spoiled = library()
    spoiled.amdsmi_get_gpu_activity = lambda _: {"gfx_activity": value, "umc_activity": value}
    spoiled.amdsmi_get_gpu_total_ecc_count = lambda _: {"uncorrectable_count": value}
    spoiled.amdsmi_get_energy_count = lambda _: {"energy_accumulator": value, "counter_resolution": 15.3}
    gpus = Amd(sysfs_tree.unpack("mi300x", tmp_path), lambda: AmdSmi(spoiled))
    alone = Amd(tmp_path, lambda: None)
    alone.devices(), gpus.devices()
    now, expected = gpus.readings()[OWN], alone.readings()[OWN]
    assert now == replace(expected, power_w=140.0, sm_clock_mhz=2000, memory_clock_mhz=1300)
