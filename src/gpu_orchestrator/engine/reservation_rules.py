"""How many places an engine keeps for requests that do not fit, and how it speaks of them."""

from collections.abc import Callable
from dataclasses import dataclass


def in_seconds(moment: float) -> str:
    return f"{moment:.0f} s"


def same(key: str) -> str:
    return key


@dataclass(frozen=True, slots=True)
class ReservationRules:
    """At most `most` places are kept at once; 0 turns reservations off. `holds` of them may be holds: places
    whose holders declare no end, kept for a request that has waited for `hold_after_s`. A hold lasts `hold_s`
    at first, then rests as long as it lasted, and each further one of the same request lasts twice as long.

    `only_passed`: places are kept for those alone that later ones passed because they ask for less.

    `told` writes a moment as others read it, `name_of` says how a request is called, and `owner_of` whose run
    time counts for what is held under a key. `declared` is how a request declares its run time."""

    most: int = 0
    holds: int = 2
    hold_after_s: float = 300.0
    hold_s: float = 600.0
    told: Callable[[float], str] = in_seconds
    name_of: Callable[[str], str] = same
    owner_of: Callable[[str], str] = same
    declared: str = "run time"
    only_passed: bool = False


OFF = ReservationRules()
