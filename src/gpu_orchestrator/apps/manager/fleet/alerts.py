"""Decides which readings of a device raise an alert. Pure: the store remembers active alerts, and raises and
clears each once. It needs two levels for that: one raises an alert, a lower one keeps it active.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.api import session

Kind = Literal["temperature", "memory", "ecc", "xid", "problem"]
CALMER_C = 5.0
CALMER_PART = 0.05
"""How far below its threshold a reading must fall to clear the alert. Else a reading that hovers around the
threshold would raise and clear it all day."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """`memory_part` is a part of the whole device. ECC errors, XIDs and other problems need no threshold: one
    is enough."""

    temperature_c: float = 85.0
    memory_part: float = 0.95


class Alert(Item, frozen=True):
    """With `raises` 0 it only keeps an alert of this kind active that was raised before."""

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
        message = f"{celsius:g} °C; the limit is {limits.temperature_c:g} °C"
        yield Alert(index, "temperature", int(celsius >= limits.temperature_c), celsius, message)
    part = reading.used_mib / max(reading.used_mib + reading.free_mib, 1)
    if part >= limits.memory_part - CALMER_PART:
        message = f"{part:.0%} of its memory is used; the limit is {limits.memory_part:.0%}"
        yield Alert(index, "memory", int(part >= limits.memory_part), round(part, 3), message)
    if reading.ecc_errors:
        message = f"{reading.ecc_errors} uncorrectable memory errors"
        yield Alert(index, "ecc", 1, reading.ecc_errors, message)
    if reading.xid:
        yield Alert(index, "xid", 1, reading.xid, reading.problem or f"XID {reading.xid}")
    elif reading.problem:
        yield Alert(index, "problem", 1, 1, reading.problem)
