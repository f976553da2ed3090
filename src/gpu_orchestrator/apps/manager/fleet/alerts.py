"""When a device's readings are cause for alarm. Pure: the store remembers which alerts stand, raises and
clears each once, and so needs to know of two levels: what raises an alert, and what keeps one up.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.api import session

Kind = Literal["temperature", "memory", "ecc", "xid", "problem"]
CALMER_C = 5.0
CALMER_PART = 0.05
"""So far below its threshold a reading must fall before the alert is over: one that hovers there would raise
and clear it all day."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`memory_part` is of the whole device. ECC errors, XIDs and other problems have none: one is enough."""

    temperature_c: float = 85.0
    memory_part: float = 0.95


class Alert(Item, frozen=True):
    """`raises` 0: only keeps an alert of this kind up that stands already."""

    device: int
    kind: Kind
    raises: int
    value: float
    message: str


def of(readings: Iterable[session.Reading], limits: Thresholds) -> list[Alert]:
    return [alert for reading in readings for alert in _of(reading, limits)]


def _of(reading: session.Reading, limits: Thresholds) -> Iterator[Alert]:
    index, celsius = reading.index, reading.temperature_c
    if celsius >= limits.temperature_c - CALMER_C:
        message = f"{celsius:g} °C; {limits.temperature_c:g} °C are the limit"
        yield Alert(index, "temperature", int(celsius >= limits.temperature_c), celsius, message)
    part = reading.used_mib / max(reading.used_mib + reading.free_mib, 1)
    if part >= limits.memory_part - CALMER_PART:
        message = f"{part:.0%} of its memory are used; {limits.memory_part:.0%} are the limit"
        yield Alert(index, "memory", int(part >= limits.memory_part), round(part, 3), message)
    if reading.ecc_errors:
        message = f"{reading.ecc_errors} errors of memory that could not be corrected"
        yield Alert(index, "ecc", 1, reading.ecc_errors, message)
    if reading.xid:
        yield Alert(index, "xid", 1, reading.xid, reading.problem or f"XID {reading.xid}")
    elif reading.problem:
        yield Alert(index, "problem", 1, 1, reading.problem)
