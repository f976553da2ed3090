"""Errors of frameworks are known as what they are: out of memory, or a device context that is broken."""

import pytest

from gpu_orchestrator.adapters.gpus.gpu import OutOfMemory
from gpu_orchestrator.apps.worker.environment import MEMORY_LIMIT
from gpu_orchestrator.apps.worker.runners.device_errors import DeviceError, classify

LIMITED = {MEMORY_LIMIT: "0=2000M,1=2000M"}
TOO_MUCH = (
    "this task reserved 2000 MiB on each device and can take no more, the CUDA context included; "
    "submit it with more memory"
)
NEIGHBOUR = "under MPS, a fault in another task of the same owner on this device looks the same"


class OutOfMemoryError(RuntimeError):
    """As torch's and CuPy's."""


class Framework(OutOfMemoryError):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def full(*, retryable: bool, advice: str = "") -> DeviceError:
    return DeviceError(is_out_of_memory=True, breaks_context=True, is_retryable=retryable, advice=advice)


def broken(*, retryable: bool, advice: str = "") -> DeviceError:
    return DeviceError(breaks_context=True, is_retryable=retryable, advice=advice)


@pytest.mark.parametrize(
    ("error", "plain", "limited"),
    [
        pytest.param(ValueError("no"), DeviceError(), DeviceError(), id="nothing of a device"),
        pytest.param(Mute(), DeviceError(), DeviceError(), id="an error that cannot be shown"),
        pytest.param(
            OutOfMemory("cuMemAlloc_v2"),
            full(retryable=True),
            full(retryable=False, advice=TOO_MUCH),
            id="our own",
        ),
        pytest.param(
            Framework("CUDA out of memory. Tried to allocate 4.00 GiB"),
            full(retryable=True),
            full(retryable=False, advice=TOO_MUCH),
            id="of a framework, by name",
        ),
        pytest.param(
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes"),
            full(retryable=True),
            full(retryable=False, advice=TOO_MUCH),
            id="of JAX, by text",
        ),
        pytest.param(
            MemoryError(),
            full(retryable=True),
            full(retryable=True),
            id="memory of the machine, not of a device",
        ),
        pytest.param(
            RuntimeError("CUDA error: an illegal memory access was encountered"),
            broken(retryable=False),
            broken(retryable=True, advice=NEIGHBOUR),
            id="illegal access",
        ),
        pytest.param(
            RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
            broken(retryable=False),
            broken(retryable=True, advice=NEIGHBOUR),
            id="illegal access, in CuPy's words",
        ),
        pytest.param(
            RuntimeError("cuCtxSynchronize failed with CUDA error 806: CUDA_ERROR_MPS_RPC_FAILURE"),
            broken(retryable=True, advice="the GPU's MPS daemon failed"),
            broken(retryable=True, advice="the GPU's MPS daemon failed"),
            id="the daemon is gone",
        ),
    ],
)
def test_errors_of_devices_are_classified(
    error: BaseException, plain: DeviceError, limited: DeviceError
) -> None:
    assert classify(error, {}) == plain
    assert classify(error, LIMITED) == limited
