"""What the machine's network and storage can do for GPUs, from sysfs: RDMA adapters, GPUDirect, cuFile.

The agent publishes it with the devices. Nothing here fails: what cannot be read is not there.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hca:
    """One RDMA adapter: its active ports, and the speed of the fastest in Gbit/s."""

    name: str
    ports: int
    speed_gbps: int


@dataclass(frozen=True, slots=True)
class Fabric:
    hcas: tuple[Hca, ...] = ()
    gpu_direct_rdma: bool = False
    cu_file: bool = False


def read(root: Path = Path("/")) -> Fabric:
    return Fabric()
