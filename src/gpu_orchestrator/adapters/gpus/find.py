"""Choose the source of GPUs: simulated ones if they are described, else the machine's own, of all vendors."""

from importlib.util import find_spec
from pathlib import Path

from gpu_orchestrator.adapters.gpus import described
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.adapters.process_rights import User


def find(
    simulate: str = "",
    folder: Path | None = None,
    user: User | None = None,
    devices_file: Path | None = None,
    root: Path = Path("/"),
) -> Gpus:
    """`simulate` or `devices_file` describes devices (see `described`) that are kept in `folder`; without
    them the real ones are read. `user` is who uses them, if that is another user than the caller's. `root` is
    where the machine's file system is mounted."""
    if simulate and devices_file:
        raise ValueError("--simulate and --devices-file both describe GPUs; give one of them")
    if simulate or devices_file:
        if folder is None:
            raise ValueError("simulated GPUs need a folder")
        return Simulated(folder, described.from_file(devices_file) if devices_file else simulate, user)
    from gpu_orchestrator.adapters.gpus.amd import Amd
    from gpu_orchestrator.adapters.gpus.machine import Machine

    if find_spec("pynvml") is None:
        return Machine(Amd(root), missing="NVIDIA: not looked for; install gpu-orchestrator[manager] for it")
    from gpu_orchestrator.adapters.gpus.nvml import Nvml

    return Machine(Nvml(root), Amd(root))
