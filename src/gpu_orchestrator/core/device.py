"""One GPU of a node, or one slice of a GPU, as a plain value: vendor, size, health.

Made by the code that observes a node; the cluster keeps the same facts in columns.
"""

from dataclasses import dataclass

WHOLE = 1000
"""Milli-GPU of one whole device."""
SLICES = 7
"""Compute parts of a GPU that can be partitioned (MIG); the number before `g` in a profile counts them."""
LARGE_MIB = 80 * 1024
"""This much memory counts as much as a whole device: its real size is known only after placement."""


@dataclass(frozen=True, slots=True)
class Device:
    """`taken_mib` is memory used by processes that were not placed here; it cannot be given. `profile` is set
    for a slice of a GPU (MIG): only requests for that profile get it. `milli` is what the device is of a
    whole GPU."""

    id: int
    uuid: str = ""
    vendor: str = ""
    model: str = ""
    memory_mib: int = 0
    taken_mib: int = 0
    healthy: bool = True
    island: int = -1
    numa: int = -1
    profile: str = ""
    milli: int = WHOLE


def profile_milli(profile: str) -> int:
    """Return what a slice of this MIG profile (`1g.10gb`, `1c.3g.40gb`) is of a whole GPU; all of it if the
    profile cannot be read."""
    head, is_given, _ = profile.partition("g.")
    *_, parts = head.split("c.")
    return int(parts) * WHOLE // SLICES if is_given and parts in {*"1234567"} else WHOLE
