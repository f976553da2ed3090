"""NVIDIA's MPS: one daemon, its folder, and the variables and limits that its clients are given. Pure.

Imports little, because every worker loads it through `adapters/mps`. `api/sharing` says which daemons a
Kubernetes node needs.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MEMORY, PERCENT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FOLDER_LENGTH = 20


@dataclass(frozen=True, slots=True, order=True)
class Daemon:
    """One daemon. `memory_mib` is the ceiling of each of its clients on each device, and `share` their part
    of the multiprocessors in thousandths; 0 for none. `uuids` are those of the devices, in their order."""

    namespace: str
    devices: tuple[int, ...]
    memory_mib: int = 0
    share: int = 0
    uuids: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return folder_of(self.namespace, self.devices, self.memory_mib, self.share)

    @property
    def commands(self) -> tuple[str, ...]:
        """Return what to tell the control program before the first client comes. It says nothing to a limit
        of memory, also if it has not understood it, so each is read back."""
        limits = [
            command
            for at in range(len(self.devices) if self.memory_mib else 0)
            for command in (
                f"set_default_device_pinned_mem_limit {at} {self.memory_mib}M",
                f"get_default_device_pinned_mem_limit {at}",
            )
        ]
        percent = [f"set_default_active_thread_percentage {percentage(self.share)}"] if self.share else []
        return (*limits, *percent)

    @property
    def answers(self) -> int:
        """Return how many lines the control program answers if all commands were understood."""
        return (len(self.devices) if self.memory_mib else 0) + bool(self.share)


def folder_of(namespace: str, devices: Iterable[int], memory_mib: int, share: int) -> str:
    """Return the name of a daemon's folder: short, and the same for every process that asks."""
    text = f"{namespace}/{','.join(map(str, sorted(devices)))}/{memory_mib}/{share}"
    return hashlib.sha256(text.encode()).hexdigest()[:FOLDER_LENGTH]


def limits(devices: int, limit_mib: int) -> str:
    """Return the limit of device memory for each visible device, as the driver reads it."""
    return ",".join(f"{index}={limit_mib}M" for index in range(devices))


def percentage(share: int) -> int:
    """Return a share in thousandths as percent, of which a client has one at least."""
    return max(1, share // 10)
