"""What an error of a handler says about the device: out of memory, or a context that can do no more.

The runner asks it for every failed task. Frameworks have errors of their own for these, which are known by
name and text here, because no framework is imported for that.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.gpus.gpu import OutOfMemory
from gpu_orchestrator.apps.worker import environment

OUT_OF_MEMORY_NAMES = frozenset({"OutOfMemoryError"})
"""Of torch and CuPy."""
_JAX_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_DEVICE_ERROR = re.compile(r"CUDA error|CUDA_ERROR_|cudaError[A-Z]|HIP error|hipError[A-Z]")
_MPS_ERROR = re.compile(r"CUDA_ERROR_MPS_|cudaErrorMps|MPS (client|server|daemon)")


@dataclass(frozen=True, slots=True)
class DeviceError:
    """`is_out_of_memory`: the task wanted more than there was. `breaks_context`: the process can do no more
    on its devices, so its runner must end. `advice` is a sentence for the task's owner, or empty."""

    is_out_of_memory: bool = False
    breaks_context: bool = False
    is_retryable: bool = False
    advice: str = ""


def classify(error: BaseException, variables: Mapping[str, str] = os.environ) -> DeviceError:
    limit = variables.get(environment.MEMORY_LIMIT, "")
    text = _text(error)
    if _is_out_of_memory(error, text):
        return DeviceError(
            is_out_of_memory=True,
            breaks_context=True,
            is_retryable=not limit or isinstance(error, MemoryError),
            advice="" if isinstance(error, MemoryError) else _memory_advice(limit),
        )
    if _MPS_ERROR.search(text):
        return DeviceError(breaks_context=True, is_retryable=True, advice="the GPU's MPS daemon failed")
    if _DEVICE_ERROR.search(text):
        shared = "under MPS, a fault in another task of the same owner on this device looks the same"
        return DeviceError(breaks_context=True, is_retryable=bool(limit), advice=shared if limit else "")
    return DeviceError()


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    names = {each.__name__ for each in type(error).__mro__}
    return (
        isinstance(error, OutOfMemory | MemoryError)
        or not names.isdisjoint(OUT_OF_MEMORY_NAMES)
        or _JAX_OUT_OF_MEMORY in text
    )


def _memory_advice(limit: str) -> str:
    """Return what to do if the limit was reached. All devices of a task have the same limit."""
    if not limit:
        return ""
    mib = limit.partition(",")[0].partition("=")[2].removesuffix("M")
    return (
        f"this task reserved {mib} MiB on each device and can take no more, the CUDA context included; "
        "submit it with more memory"
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""  # its own `__str__` failed
