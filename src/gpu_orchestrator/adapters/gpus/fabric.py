"""What the machine's network and storage can do for GPUs, from sysfs: RDMA adapters, GPUDirect, cuFile.

The agent publishes it with the devices. Nothing here fails: what cannot be read is not there.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_orchestrator.adapters.gpus.sysfs import text

PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
PEER_CLIENTS = "sys/kernel/mm/memory_peers"
"""Where NVIDIA's network drivers list the drivers that give them memory of GPUs."""
NVIDIA_VERSION = "proc/driver/nvidia/version"
OPEN_MODULE = "Open Kernel Module"
CUFILE_MODULE = "sys/module/nvidia_fs"
_RATE = re.compile(r"[0-9]{1,6}(?![0-9])")
"""Whole Gbit/s; more than six digits are nonsense."""


@dataclass(frozen=True, slots=True)
class Hca:
    """One RDMA adapter: its active ports, and the speed of the fastest in Gbit/s."""

    name: str
    ports: int
    speed_gbps: int


@dataclass(frozen=True, slots=True)
class Fabric:
    """`gpu_direct_rdma`: adapters reach the memory of GPUs without the CPU. `cu_file`: so does storage."""

    hcas: tuple[Hca, ...] = ()
    gpu_direct_rdma: bool = False
    cu_file: bool = False


def read(root: Path = Path("/")) -> Fabric:
    hcas = tuple(_hca(folder) for folder in _folders(root / "sys/class/infiniband"))
    return Fabric(
        hcas=hcas,
        gpu_direct_rdma=any(hca.ports for hca in hcas) and _has_peer_memory(root),
        cu_file=_is_folder(root / CUFILE_MODULE),
    )


def _hca(folder: Path) -> Hca:
    active = [port for port in _folders(folder / "ports") if "ACTIVE" in text(port / "state")]
    speeds = [_RATE.match(text(port / "rate")) for port in active]
    return Hca(folder.name, len(active), max((int(each[0]) for each in speeds if each), default=0))


def _has_peer_memory(root: Path) -> bool:
    """NVIDIA's open modules share memory as dma-buf and need no further module; the others need one."""
    return (
        any(_is_folder(root / "sys/module" / module) for module in PEER_MODULES)
        or bool(_folders(root / PEER_CLIENTS))
        or OPEN_MODULE in text(root / NVIDIA_VERSION)
    )


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(each for each in folder.iterdir() if each.is_dir())
    return []


def _is_folder(path: Path) -> bool:
    with suppress(OSError):
        return path.is_dir()
    return False
