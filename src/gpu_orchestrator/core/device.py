"""One GPU of a node as a plain value: vendor, size, health.

Made by the code that observes a node; the cluster keeps the same facts in columns.
"""

from dataclasses import dataclass

WHOLE = 1000
"""Milli-GPU of one whole device."""


@dataclass(frozen=True, slots=True)
class Device:
    """`taken_mib` is memory used by processes that were not placed here; it cannot be given."""

    id: int
    uuid: str = ""
    vendor: str = ""
    model: str = ""
    memory_mib: int = 0
    taken_mib: int = 0
    healthy: bool = True
    island: int = -1
    numa: int = -1
