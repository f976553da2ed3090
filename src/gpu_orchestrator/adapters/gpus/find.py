"""Choose the source of GPUs: simulated ones if they are described, else the machine's own."""

from pathlib import Path

from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.adapters.process_rights import User


def find(simulate: str = "", folder: Path | None = None, user: User | None = None) -> Gpus:
    """`simulate` describes devices (see `Simulated`) that are kept in `folder`; empty means the real ones.
    `user` is who uses them, if that is another user than the caller's."""
    if simulate:
        if folder is None:
            raise ValueError("simulated GPUs need a folder")
        return Simulated(folder, simulate, user)
    from gpu_orchestrator.adapters.gpus.nvml import Nvml

    return Nvml()
