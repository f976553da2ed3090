"""Device memory through CUDA's driver API, by ctypes on libcuda: no toolkit, no framework, no build step.

Only for processes that work on devices. Importing it opens nothing; `CudaMemory()` does.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from gpu_orchestrator.adapters.gpus.gpu import OutOfMemory
from gpu_orchestrator.api.units import MIB

OUT_OF_MEMORY = 2
CHUNK = 16 * MIB
MOST_CHUNKS = 256


class CudaError(Exception):
    """A driver call failed. After most of these errors the process can do no more on the device: end it."""

    spends_runner = True


class CudaMemory:
    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver here: {error}") from error
        self._call("cuInit", c_uint(0))
        self._contexts: dict[int, c_void_p] = {}

    def count(self) -> int:
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        return count.value

    def allocate(self, device: int, mib: int) -> "CudaBlock":
        self._enter(device)
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(mib * MIB))
        return CudaBlock(self, device, address, mib * MIB)

    def fill(self, block: "CudaBlock", word: int) -> None:
        self._enter(block.device)
        self._call("cuMemsetD32_v2", block.address, c_uint(word), c_size_t(block.size // 4))
        self._call("cuCtxSynchronize")

    def read(self, block: "CudaBlock", offset: int, size: int) -> bytes:
        self._enter(block.device)
        buffer = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", buffer, c_uint64(block.address.value + offset), c_size_t(size))
        return buffer.raw

    def free(self, block: "CudaBlock") -> None:
        self._enter(block.device)
        self._call("cuMemFree_v2", block.address)

    def _enter(self, device: int) -> None:
        """Make the device's primary context current; the first call creates it, and it lives as long as the
        process."""
        if device not in self._contexts:
            handle, context = c_int(), c_void_p()
            self._call("cuDeviceGet", byref(handle), c_int(device))
            self._call("cuDevicePrimaryCtxRetain", byref(context), handle)
            self._contexts[device] = context
        self._call("cuCtxSetCurrent", self._contexts[device])

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cuda, function)(*arguments)
        if status == OUT_OF_MEMORY:
            raise OutOfMemory(f"{function}: the device is out of memory")
        if status:
            raise CudaError(f"{function} failed with CUDA error {status}: {self._name(status)}")

    def _name(self, status: int) -> str:
        name = ctypes.c_char_p()
        self._cuda.cuGetErrorName(c_int(status), byref(name))
        return (name.value or b"unknown").decode()


class CudaBlock:
    def __init__(self, memory: CudaMemory, device: int, address: c_uint64, size: int) -> None:
        self._memory, self.device, self.address, self.size = memory, device, address, size

    def fill(self, word: int) -> None:
        self._memory.fill(self, word)

    def holds(self, word: int) -> bool:
        """Read back all of a small block, and evenly spread pieces of a large one."""
        size = min(CHUNK, self.size)
        expected = word.to_bytes(4, "little") * (size // 4)
        return all(self._memory.read(self, offset, size) == expected for offset in self._offsets(size))

    def free(self) -> None:
        self._memory.free(self)

    def _offsets(self, size: int) -> list[int]:
        last = self.size - size
        pieces = min(-(-self.size // size), MOST_CHUNKS)
        return [last * number // max(pieces - 1, 1) // 4 * 4 for number in range(pieces)]
