"""Which source of GPUs a process uses: the described ones if it was told so, else the machine's own."""

from pathlib import Path

from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.gpus.simulated import Simulated


def find(simulate: str = "", folder: Path | None = None) -> Gpus:
    """`simulate` describes devices (see `Simulated`), kept in `folder`; empty means the real ones."""
    if simulate:
        if folder is None:
            raise ValueError("simulated GPUs need a folder to be kept in")
        return Simulated(folder, simulate)
    from gpu_orchestrator.adapters.gpus.nvml import Nvml

    return Nvml()
