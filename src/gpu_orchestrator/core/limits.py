"""The largest numbers that the cluster counts. Its columns have a fixed width, so larger numbers are refused
where a value is made and never overflow where it is used."""

from collections.abc import Iterable

from gpu_orchestrator.core.errors import InvalidRequest

MOST_AMOUNT = 2**53
"""Of a resource on one node (8 PiB). Requests stay below it: an amount cut to this value fits nowhere."""

MOST_MIB = 2**24
"""Memory of one device (16 TiB)."""

MOST_DEVICES = 1024
"""Of one node."""

MOST_NUMBER = 2**31 - 1
"""Of anything else: GPUs asked for, GB/s, ports."""


def within(number: int, most: int) -> int:
    """Return the nearest number that can be counted, for observed values that cannot be refused."""
    return number if 0 <= number <= most else min(max(number, 0), most)


def check(who: str, numbers: Iterable[tuple[str, int, int]]) -> None:
    """Raise `InvalidRequest` for a number out of range. Each entry is a name, a number and its maximum."""
    for what, number, most in numbers:
        if not 0 <= number <= most:
            raise InvalidRequest(f"{who} {number} {what}; it can be 0 to {most}")
