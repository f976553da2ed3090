"""Decide whether a device is healthy, from its readings over time. Pure: the clock is an argument.

    HEALTHY ──a check fails──► UNHEALTHY ──checks pass for the recovery time──► HEALTHY
                                 │    ▲
                                 └────┘ a check fails: the recovery time starts again

Bad news counts at once, good news only after a while, twice as long after each relapse. So a device that
flaps is written down as unhealthy once and stays so, however often it flaps. When it recovered and how often
it relapsed is published, so that the next agent goes on counting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_orchestrator.adapters.gpus.gpu import Reading
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.gpunodestatus import NodeDevice

CALMER_C = 5.0
"""How far below the limit a hot device must cool before the check passes."""
STEADY_S = 3600.0
"""A device that was healthy this long starts with the shortest recovery time again."""
MOST_DOUBLINGS = 20

LOST = "the driver does not list it any more; look for an XID in the kernel log and restart the node"
UNREAD = "the driver has not answered for {:.0f} s; look at the kernel log and restart the node"


@dataclass(frozen=True, slots=True)
class Rules:
    """`temperature_c` 0: no limit."""

    temperature_c: float = 95.0
    recovery_s: float = 60.0
    longest_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a check failed. During one illness only a graver fault replaces the reason that is shown, because
    each change is a write."""

    gravity: int
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """`fault` is None for a healthy device. `since`: when it became so; `passing_since`: since when all
    checks of an unhealthy device have passed."""

    fault: Fault | None = None
    since: float = float("-inf")
    passing_since: float | None = None
    relapses: int = 0

    @property
    def is_healthy(self) -> bool:
        return self.fault is None


HEALTHY = Condition()


def resumed(device: NodeDevice, now: float, moment: datetime) -> Condition:
    """Return the condition of a device as the last agent left it. `moment` is `now` by the calendar: what was
    published outlives the monotonic clock."""
    relapses = min(device.relapses, MOST_DOUBLINGS)
    if device.health != "Healthy":
        return Condition(Fault(0, device.unhealthy_reason), now, now, relapses)
    recovered = timestamps.parse_or_none(device.recovered_at)
    if recovered is None:
        return HEALTHY
    return Condition(None, now - max((moment - recovered).total_seconds(), 0.0), None, relapses)


def steps(
    known: Mapping[str, Condition], faults: Mapping[str, Fault | None], now: float, rules: Rules
) -> dict[str, Condition]:
    """Return the condition of each device after a look."""
    return {uuid: step(known.get(uuid, HEALTHY), fault, now, rules) for uuid, fault in faults.items()}


def step(known: Condition, fault: Fault | None, now: float, rules: Rules) -> Condition:
    if fault is not None:
        return _failed(known, fault, now)
    if known.is_healthy:
        return known
    if known.passing_since is None:
        return replace(known, passing_since=now)
    if now - known.passing_since < _recovery_s(known, rules):
        return known
    return Condition(None, now, None, known.relapses)


def _failed(known: Condition, fault: Fault, now: float) -> Condition:
    if known.fault is None:
        is_relapse = now - known.since < STEADY_S
        return Condition(fault, now, None, min(known.relapses + 1, MOST_DOUBLINGS) if is_relapse else 0)
    shown = fault if fault.gravity > known.fault.gravity else known.fault
    return replace(known, fault=shown, passing_since=None)


def _recovery_s(known: Condition, rules: Rules) -> float:
    return min(rules.recovery_s * 2.0**known.relapses, rules.longest_s)


def faults(
    uuids: Iterable[str], readings: Mapping[str, Reading], known: Mapping[str, Condition], rules: Rules
) -> dict[str, Fault | None]:
    """Return what is wrong with each device now; a device without a reading is lost."""
    return {
        uuid: fault(readings[uuid], known.get(uuid, HEALTHY), rules) if uuid in readings else Fault(3, LOST)
        for uuid in uuids
    }


def fault(reading: Reading, known: Condition, rules: Rules) -> Fault | None:
    """Return the gravest of what is wrong with a reading; None if every check passes."""
    if reading.xid:
        return Fault(3, reading.problem or f"the driver reported XID {reading.xid}; reset the device")
    if reading.problem:
        return Fault(3, reading.problem)
    if reading.ecc_errors:
        return Fault(2, "uncorrectable memory errors; reset the device")
    limit = rules.temperature_c if known.is_healthy else rules.temperature_c - CALMER_C
    if rules.temperature_c and reading.temperature_c is not None and reading.temperature_c >= limit:
        return Fault(1, f"at or above {rules.temperature_c:g} °C")
    return None
