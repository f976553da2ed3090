"""AMD's library `amdsmi`, where the host has it: readings that sysfs does not have, such as energy.

It comes with ROCm, not from a package index, so it is imported by name and may be missing. Identity and
topology always come from sysfs: a device keeps its UUID when ROCm is installed or removed. Names and answers
differ between versions of the library; what a version does not have is left out.
"""

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

LARGEST = 2**64
"""What is larger, or is not a number, is nonsense of the library."""


class AmdSmi:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[str, Any] = {}

    def names(self) -> dict[str, str]:
        """Return what the boards are sold as, by PCI address in the form of sysfs. Also find the boards
        again."""
        self._handles = {}
        for handle in self._ask("amdsmi_get_processor_handles") or ():
            address = self._ask("amdsmi_get_gpu_device_bdf", handle)
            if isinstance(address, str):
                self._handles[address.lower()] = handle
        asked = {each: self._ask("amdsmi_get_gpu_asic_info", at) for each, at in self._handles.items()}
        return {each: str(info["market_name"]) for each, info in asked.items() if _has(info, "market_name")}

    def values(self, address: str) -> dict[str, Any]:
        """Return the fields of a `Reading` that the library knows of a board, by its PCI address."""
        if (handle := self._handles.get(address.lower())) is None:
            return {}
        load = self._ask("amdsmi_get_gpu_activity", handle)
        power = self._ask("amdsmi_get_power_info", handle)
        errors = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        slot = self._ask("amdsmi_get_pcie_info", handle)
        counters = slot["pcie_metric"] if _has(slot, "pcie_metric") else None
        found = {
            "utilization_percent": _number(load, "gfx_activity"),
            "memory_utilization_percent": _number(load, "umc_activity"),
            "power_w": _number(power, "current_socket_power", "average_socket_power"),
            "energy_j": _joules(self._ask("amdsmi_get_energy_count", handle)),
            "temperature_c": self._temperature(handle),
            "sm_clock_mhz": self._clock(handle, "GFX"),
            "memory_clock_mhz": self._clock(handle, "MEM"),
            "ecc_errors": _count(errors, "uncorrectable_count"),
            "ecc_corrected": _count(errors, "correctable_count"),
            "pcie_replays": _count(counters, "pcie_replay_count"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def close(self) -> None:
        self._ask("amdsmi_shut_down")

    def _temperature(self, handle: Any) -> float | None:
        with suppress(Exception):
            kind = self._library.AmdSmiTemperatureType.HOTSPOT
            now = self._library.AmdSmiTemperatureMetric.CURRENT
            return _number({"now": self._library.amdsmi_get_temp_metric(handle, kind, now)}, "now")
        return None

    def _clock(self, handle: Any, kind: str) -> int | None:
        with suppress(Exception):
            found = self._library.amdsmi_get_clock_info(handle, getattr(self._library.AmdSmiClkType, kind))
            return _count(found, "clk", "cur_clk")
        return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return an answer, None if this version or this board has none. The library raises errors of its own
        that cannot be named before it is imported."""
        with suppress(Exception):
            return getattr(self._library, name)(*arguments)
        return None


def find() -> AmdSmi | None:
    """Return the library, opened; None if the host has none or it does not start."""
    try:
        library = importlib.import_module("amdsmi")
        library.amdsmi_init()
    except Exception:  # a missing shared library fails the import in ways of its own
        return None
    return AmdSmi(library)


def _has(answer: Any, name: str) -> bool:
    return isinstance(answer, Mapping) and bool(answer.get(name))


def _number(answer: Any, *names: str) -> float | None:
    """Return the first of these fields that is a number; the library writes `N/A` for unknown ones."""
    values = (answer.get(name) for name in names) if isinstance(answer, Mapping) else ()
    return next(
        (float(each) for each in values if isinstance(each, int | float) and abs(each) < LARGEST), None
    )


def _count(answer: Any, *names: str) -> int | None:
    found = _number(answer, *names)
    return None if found is None else int(found)


def _joules(answer: Any) -> float | None:
    """The counter is in units of its resolution, which is in microjoules."""
    count, unit = _number(answer, "energy_accumulator", "power"), _number(answer, "counter_resolution")
    return None if count is None or unit is None else count * unit / 1e6
