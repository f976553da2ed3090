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
            return wish.share or _part_of_memory(wish.memory_mib or 0, largest_mib)
        case "MIG":
            found = _PROFILE_PARTS.match(wish.mig_profile)
            return int(found[1]) * WHOLE_DEVICE // MIG_PARTS if found else WHOLE_DEVICE
        case _:
            return WHOLE_DEVICE


def _part_of_memory(amount_mib: int, whole_mib: int) -> int:
    """Return the part in thousandths, rounded up, at least 1 and at most a whole device. Slices of MIG are
    rounded down instead: seven of a seventh must fit one device."""
    if amount_mib <= 0 or whole_mib <= 0:
        return WHOLE_DEVICE
    return min(WHOLE_DEVICE, -(-amount_mib * WHOLE_DEVICE // whole_mib))
