"""How many thousandths of a GPU a claim counts for: the extended resource `gpu.scheduling/milligpu`.

A claimed pod requests no resource of a device plugin, so without this nothing in Kubernetes would count its
GPUs. Webhook, operator, scheduler and policies must agree on the number, so it is computed in one place.
"""

from math import ceil, floor

from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.core.device import WHOLE, profile_milli

WHOLE_DEVICE = WHOLE


def milligpu(wish: DeviceWish, count: int, *, largest_mib: int = 0) -> int:
    """Return what `count` devices, held as `wish` says, count for. `largest_mib` is the memory of the largest
    device of the wished model that is known; 0 if none is, and then memory alone counts as a whole device."""
    return count * _of_one(wish, largest_mib)


def needs_memory(wish: DeviceWish) -> bool:
    """Return True if the answer depends on `largest_mib`."""
    return wish.exclusivity == "Shared" and bool(wish.memory_mib)


def _of_one(wish: DeviceWish, largest_mib: int) -> int:
    match wish.exclusivity:
        case "Shared":
            # Of both, the larger: a share of 1 with all of the memory leaves nothing for others.
            return max(wish.share or 0, _part_of_memory(wish, largest_mib))
        case "MIG":
            return profile_milli(wish.mig_profile)
        case _:
            return WHOLE_DEVICE


def _part_of_memory(wish: DeviceWish, whole_mib: int) -> int:
    """Return the part in thousandths, rounded up, at most a whole device; 0 if only a share is wished. Beside
    a share it is rounded down, as slices of MIG are: seven of a seventh must fit one device."""
    if not wish.memory_mib:
        return 0 if wish.share else WHOLE_DEVICE
    if not whole_mib:
        return WHOLE_DEVICE
    exact = wish.memory_mib * WHOLE_DEVICE / whole_mib
    return min(WHOLE_DEVICE, floor(exact) if wish.share else ceil(exact))
