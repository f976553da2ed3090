"""How many thousandths of a GPU a claim counts for: the extended resource `gpu.scheduling/milligpu`.

A claimed pod requests no resource of a device plugin, so without this nothing in Kubernetes would count its
GPUs. Webhook, operator, scheduler and policies must agree on the number, so it is computed in one place.
"""

import re

from gpu_orchestrator.api.devices import DeviceWish

WHOLE_DEVICE = 1000
MIG_PARTS = 7
"""Compute parts of a GPU that can be partitioned; the number before `g` in a profile counts them."""

_PROFILE_PARTS = re.compile(r"(?:[1-7]c\.)?([1-7])g\.")


def milligpu(wish: DeviceWish, count: int, *, largest_mib: int = 0) -> int:
    """Return what `count` devices, held as `wish` says, count for. `largest_mib` is the memory of the largest
    device of the wished model that is known; 0 if none is, and then memory alone counts as a whole device."""
    return count * _of_one(wish, largest_mib)


def needs_memory(wish: DeviceWish) -> bool:
    """Return True if the answer depends on `largest_mib`."""
    return wish.exclusivity == "Shared" and not wish.share


def _of_one(wish: DeviceWish, largest_mib: int) -> int:
    match wish.exclusivity:
        case "Shared":
            return wish.share or _part(wish.memory_mib or 0, largest_mib)
        case "MIG":
            found = _PROFILE_PARTS.match(wish.mig_profile)
            return _part(int(found[1]), MIG_PARTS) if found else WHOLE_DEVICE
        case _:
            return WHOLE_DEVICE


def _part(amount: int, whole: int) -> int:
    """Return the part in thousandths, rounded up, at least 1 and at most a whole device."""
    if amount <= 0 or whole <= 0:
        return WHOLE_DEVICE
    return min(WHOLE_DEVICE, -(-amount * WHOLE_DEVICE // whole))
