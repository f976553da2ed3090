"""Copies of models: one model, loaded on one set of devices of a node. Which one must go when room is needed.

A copy is an allocation that may be evicted: never while a task uses it or an operator pinned it; else the one
that is cheapest to lose per MiB. The worker frees memory by it, the engine predicts by it what that costs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

HALF_LIFE_S = 300.0
"""Use that long ago counts half."""
LEAST_LOAD_S = 0.1
LEAST_USES = 0.01

Device = int | str
"""Number or UUID of a device, whichever the caller uses."""


@dataclass(frozen=True, slots=True)
class Copy:
    """`mib` is held on each of the devices. `uses` counts tasks, older ones less; it was right at `used_at`.
    Times are in seconds of any one clock. `number` tells one load from another; 0 if it is only expected."""

    model: str
    devices: tuple[Device, ...]
    mib: int = 0
    load_s: float = 0.0
    loaded_at: float = 0.0
    used_at: float = 0.0
    uses: float = 1.0
    busy: bool = False
    pinned: bool = False
    number: int = 0

    @property
    def may_go(self) -> bool:
        return not (self.busy or self.pinned)


def faded(age_s: float) -> float:
    """Return how much counts of what happened that long ago, from 1 to 0."""
    return float(0.5 ** (max(age_s, 0.0) / HALF_LIFE_S))


def uses_now(copy: Copy, now: float) -> float:
    return copy.uses * faded(now - copy.used_at)


def value(copy: Copy, now: float) -> float:
    """Return what it would cost to load the copy again, times its recent use, per MiB that it holds."""
    held = max(copy.mib * len(copy.devices), 1)
    return max(copy.load_s, LEAST_LOAD_S) * max(uses_now(copy, now), LEAST_USES) / held


def is_young(copy: Copy, now: float, min_loaded_s: float) -> bool:
    return now - copy.loaded_at < min_loaded_s


def cheapest_first(copies: Iterable[Copy], now: float, min_loaded_s: float = 0.0) -> list[Copy]:
    """Return the copies that may go: those loaded long enough ago first, then by value."""
    may_go = (each for each in copies if each.may_go)
    return sorted(may_go, key=lambda each: (is_young(each, now, min_loaded_s), value(each, now)))


def victims(
    copies: Collection[Copy], short: Mapping[Device, int], now: float, min_loaded_s: float = 0.0
) -> tuple[Copy, ...] | None:
    """Return the copies to evict so that each device gains the MiB that it is `short` of; None if all that
    may go are not enough. None of those returned could stay."""
    left = {device: mib for device, mib in short.items() if mib > 0}
    chosen: list[Copy] = []
    for copy in cheapest_first(copies, now, min_loaded_s):
        if not any(left.get(device, 0) > 0 for device in copy.devices):
            continue
        chosen.append(copy)
        for device in copy.devices:
            if device in left:
                left[device] -= copy.mib
    if any(mib > 0 for mib in left.values()):
        return None
    return tuple(_needed(chosen, left))


def beyond(copies: Collection[Copy], now: float, *, most: int, most_mib: int) -> tuple[Copy, ...]:
    """Return the copies to evict so that at most `most` of them, with `most_mib` in all, stay: the cheapest
    first. What is in use or pinned stays, even if that is too much."""
    count, total = len(copies), sum(held_mib(each) for each in copies)
    gone: list[Copy] = []
    for copy in cheapest_first(copies, now):
        if count <= most and total <= most_mib:
            break
        gone.append(copy)
        count, total = count - 1, total - held_mib(copy)
    return tuple(gone)


def held_mib(copy: Copy) -> int:
    return copy.mib * len(copy.devices)


def _needed(chosen: list[Copy], left: dict[Device, int]) -> Iterable[Copy]:
    """Yield the chosen copies without those that, after the later and larger ones, are not needed. `left` has
    what is gained too much, as negative numbers."""
    for copy in reversed(chosen):
        within = [device for device in copy.devices if device in left]
        if all(left[device] + copy.mib <= 0 for device in within):
            for device in within:
                left[device] += copy.mib
        else:
            yield copy
