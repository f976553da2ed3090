"""Calls of NVML that may fail: what is not supported is left out, what means a lost device is raised."""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

T = TypeVar("T")

NONSENSE = (ValueError, TypeError, OverflowError)
"""What comes of answers that are none: text that is not UTF-8, which the library decodes itself, or numbers
that are not numbers."""

LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors after which no other answer about the device counts. Some drivers answer "unknown error" where they
do not support a call: it is not among them."""

UNSUPPORTED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


def call_or(call: Callable[[], T], default: T) -> T:
    """Return the driver's answer, or `default` if this device or driver does not support the call."""
    try:
        return call()
    except (pynvml.NVMLError, *NONSENSE):
        return default


def value_or(call: Callable[[], T], default: T) -> T:
    """The same for a value of a device, but raise if the device or the driver was lost meanwhile."""
    try:
        return call()
    except pynvml.NVMLLibraryMismatchError:
        return default  # the driver is older than the call
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return default
    except NONSENSE:
        return default


def list_or_none(call: Callable[[], list[T]]) -> list[T] | None:
    """Return a list of the driver's, empty if it does not keep one, None if it could not be read now: as when
    processes start faster than they are read."""
    try:
        return call()
    except pynvml.NVMLLibraryMismatchError:
        return []
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return [] if error.value in UNSUPPORTED else None
    except NONSENSE:
        return None


def field(handle: Any, number: int, link: int | None = None) -> int | None:
    """Return a value that NVML numbers instead of naming, None if the device does not have it."""
    asked = number if link is None else (number, link)
    found = value_or(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [asked]), None)
    if found is None or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(found[0].value.uiVal)


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
