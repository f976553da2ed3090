"""Gets every GPU workload onto exactly the right GPUs, and can prove it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_orchestrator.client import AsyncClient, Call, Client, task

__version__ = "0.1.0"
__all__ = ("AsyncClient", "Call", "Client", "__version__", "task")


def __getattr__(name: str) -> Any:
    """Load the Python interface only where it is used: every process of ours loads this module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("gpu_orchestrator.client"), name)
