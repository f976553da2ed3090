"""Amounts as people write them: `"24GB"`, `"3.2s"`. Memory is in binary units, as GPU vendors use them."""

import re

from gpu_orchestrator.core.limits import MOST_NUMBER

MIB = 1024 * 1024
"""Bytes in a MiB."""

_MIB_PER = {"": 1 / 1024**2, "b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_MEMORY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


class BadAmount(ValueError):
    """The text is not an amount."""


def memory_mib(amount: str | int | float) -> int:
    """Parse `"24GB"`, `"24Gi"`, `"800 MiB"`; a bare number is bytes. Rounded up, because too little would not
    do."""
    found = _MEMORY.fullmatch(str(amount))
    if not found:
        raise BadAmount(
            f"{amount!r} is not an amount of memory; write a number and a unit, such as 24GB or 800MiB"
        )
    mib = float(found[1]) * _MIB_PER[found[2].lower()]
    if mib > MOST_NUMBER:
        raise BadAmount(f"{amount!r} is more memory than can be counted; at most {MOST_NUMBER} MiB")
    return -int(-mib // 1)


def show_memory(mib: float) -> str:
    """`24GB`, `1.5GB`, `512MB`."""
    if mib >= 1024:
        return f"{round(mib / 1024, 1):g}GB"
    return f"{round(mib):g}MB"


def show_seconds(seconds: float) -> str:
    """`3.2s`."""
    return f"{round(seconds, 1):g}s"
