"""Kubernetes quantities ("100m", "16Gi", "1e3"), read exactly and compared as whole numbers.

`whole` and `milli` round up as Kubernetes does, so no request is counted too low. A number too large to count
becomes `MOST_AMOUNT`, which no request may ask for.
"""

import re
from fractions import Fraction
from functools import lru_cache

from gpu_orchestrator.core.limits import MOST_AMOUNT

_SHAPE = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<suffix>[A-Za-z]*|[eE][+-]?[0-9]+)"
)
_SUFFIXES = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000 ** (3 - power)) for power, suffix in enumerate("num")},
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}
# The server caps numbers at 2^63-1; a larger exponent than this would only cost memory.
_LARGEST_EXPONENT = 30
# The server writes shorter numbers; a long one costs time, and Python refuses one of 4,300 digits.
_LONGEST = 64
_REMEMBERED = 4096


class BadQuantity(ValueError):
    """The text is not a quantity, or is negative."""


@lru_cache(_REMEMBERED)
def parse(text: str) -> Fraction:
    if len(text) > _LONGEST:
        raise BadQuantity(f"a quantity of {len(text)} characters cannot be counted; write at most {_LONGEST}")
    found = _SHAPE.fullmatch(text)
    if not found:
        raise BadQuantity(f"{text!r} is not a quantity; write a number with a unit, such as 500m, 2 or 16Gi")
    if found["sign"] == "-":
        raise BadQuantity(f"{text!r} is negative; write 0 or more")
    return Fraction(found["number"]) * _unit(found["suffix"], text)


@lru_cache(_REMEMBERED)
def whole(text: str) -> int:
    """Return units (bytes, GPUs, pods), rounded up."""
    return _counted(parse(text))


@lru_cache(_REMEMBERED)
def milli(text: str) -> int:
    """Return thousandths (of a CPU), rounded up."""
    return _counted(parse(text) * 1000)


def _unit(suffix: str, text: str) -> Fraction:
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    exponent = suffix[1:]
    if not exponent.lstrip("+-").isdecimal():
        known = " ".join(_SUFFIXES).strip()
        raise BadQuantity(f"{text!r} has the unknown unit {suffix!r}; known units: {known}")
    if abs(int(exponent)) > _LARGEST_EXPONENT:
        raise BadQuantity(f"{text!r} is beyond what can be counted; the exponent ends at {_LARGEST_EXPONENT}")
    return Fraction(10) ** int(exponent)


def _counted(value: Fraction) -> int:
    return min(-(-value.numerator // value.denominator), MOST_AMOUNT)
