"""Network adapters, GPUDirect and cuFile, from files as the kernel has them."""

from pathlib import Path

import pytest

from gpu_orchestrator.adapters.gpus import fabric
from gpu_orchestrator.adapters.gpus.fabric import Fabric, Hca

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05"


def adapter(root: Path, name: str, *ports: tuple[str, str]) -> None:
    for number, (state, rate) in enumerate(ports, 1):
        folder = root / "sys/class/infiniband" / name / "ports" / str(number)
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")


def driver(root: Path, version: str) -> None:
    path = root / "proc/driver/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(version)


def test_machine_without_adapters_has_no_fabric(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert fabric.read(tmp_path) == Fabric()


def test_active_ports_and_the_fastest_of_them_count(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", (ACTIVE, "100 Gb/sec (4X EDR)"), (ACTIVE, "200 Gb/sec (4X HDR)"))
    adapter(tmp_path, "mlx5_1", (DOWN, "400 Gb/sec (4X NDR)"))
    adapter(tmp_path, "rxe0", (ACTIVE, "2.5 Gb/sec (1X SDR)"))
    assert fabric.read(tmp_path).hcas == (Hca("mlx5_0", 2, 200), Hca("mlx5_1", 0, 0), Hca("rxe0", 1, 2))


@pytest.mark.parametrize(
    ("module", "version", "state", "expected"),
    [
        pytest.param("nvidia_peermem", CLOSED, ACTIVE, True, id="with its module"),
        pytest.param("", OPEN, ACTIVE, True, id="open driver"),
        pytest.param("", CLOSED, ACTIVE, False, id="closed driver alone"),
        pytest.param("nvidia_peermem", OPEN, DOWN, False, id="no port is up"),
    ],
)
def test_gpu_direct_rdma(tmp_path: Path, module: str, version: str, state: str, expected: bool) -> None:
    adapter(tmp_path, "mlx5_0", (state, "400 Gb/sec (4X NDR)"))
    driver(tmp_path, version)
    (tmp_path / "sys/module" / module).mkdir(parents=True)
    assert fabric.read(tmp_path).gpu_direct_rdma is expected


def test_cufile_needs_its_module(tmp_path: Path) -> None:
    assert not fabric.read(tmp_path).cu_file
    (tmp_path / "sys/module/nvidia_fs").mkdir(parents=True)
    assert fabric.read(tmp_path).cu_file
