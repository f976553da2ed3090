"""Which MPS daemons of this node to start, list and end, and when. Pure.

    needed ──► STARTING ──► LISTENING ──► not needed: off the report ──► half a minute later: ENDING ──► gone
                  ▲  │          │
                  │  ▼          ▼
                  └─ ENDED: starts again, at once or after a pause

A scheduler binds a pod whose daemon it has just read in the report, so a daemon ends only if the report that
was written last has not had it for half a minute. docs/decisions/0014-shared-claims-that-hold.md says why.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_orchestrator.api.mps import Daemon

GRACE_S = 30.0
STEADY_S = 60.0
"""A daemon that listened this long before it ended is started again at once."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class Phase(Enum):
    STARTING = "starting"
    LISTENING = "listening"
    ENDED = "ended"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Slot:
    """One daemon. `since` is when its phase began; one that has ended may start at `start_at`. `off_since` is
    from when on neither a lease nor the written report had it; None if one of them has it."""

    daemon: Daemon
    phase: Phase
    since: float
    failures: int = 0
    start_at: float = 0.0
    off_since: float | None = None


Slots = Mapping[str, Slot]
"""By folder."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and when to ask again at the latest; None: when something happens."""

    slots: dict[str, Slot] = field(default_factory=dict)
    start: tuple[Daemon, ...] = ()
    end: tuple[str, ...] = ()
    again_at: float | None = None


def admitted(
    slots: Slots, needed: Iterable[Daemon], written: Collection[str], most: int
) -> tuple[Daemon, ...]:
    """Return the daemons that there is room for: `most` at once, half of them for one namespace. Each takes
    memory of the node and of its devices that no share counts, and they live in one container. Those that run
    stay, those that the report had come next, as pods are bound to them, and then each namespace in turn."""
    running = {folder for folder, slot in slots.items() if slot.phase is not Phase.ENDED}
    taken = Counter(slots[folder].daemon.namespace for folder in running)
    rank, found = Counter[str](), list[tuple[bool, int, Daemon]]()
    for daemon in needed:
        rank[daemon.namespace] += 1
        found.append((daemon.folder not in written, rank[daemon.namespace], daemon))
    kept = []
    for *_, daemon in sorted(found):
        if daemon.folder not in running:
            if taken.total() >= most or taken[daemon.namespace] >= max(most // 2, 1):
                continue
            taken[daemon.namespace] += 1
        kept.append(daemon)
    return tuple(sorted(kept))


def plan(slots: Slots, needed: Iterable[Daemon], written: Collection[str], now: float) -> Plan:
    """Return what to do. `written` are the folders in the report that was written last."""
    wanted = {daemon.folder: daemon for daemon in needed}
    after = {folder: _seen(slot, folder in wanted, folder in written, now) for folder, slot in slots.items()}
    for folder, daemon in wanted.items():
        slot = after.setdefault(folder, Slot(daemon, Phase.ENDED, now, start_at=now))
        if slot.phase is Phase.ENDED:
            after[folder] = replace(slot, daemon=daemon)
    end = tuple(sorted(folder for folder, slot in after.items() if _must_end(slot, wanted.get(folder), now)))
    after |= {folder: replace(after[folder], phase=Phase.ENDING, since=now) for folder in end}
    start = tuple(wanted[folder] for folder in sorted(wanted) if _may_start(after[folder], now))
    for daemon in start:
        after[daemon.folder] = replace(after[daemon.folder], phase=Phase.STARTING, since=now)
    return Plan(after, start, end, min(_times(after, wanted), default=None))


def _seen(slot: Slot, is_wanted: bool, is_written: bool, now: float) -> Slot:
    if is_wanted or is_written:
        return replace(slot, off_since=None)
    return slot if slot.off_since is not None else replace(slot, off_since=now)


def _must_end(slot: Slot, wanted: Daemon | None, now: float) -> bool:
    if slot.phase is Phase.ENDING:
        return False
    if wanted is None:
        return slot.off_since is not None and now >= slot.off_since + GRACE_S
    return wanted != slot.daemon  # a device has been replaced


def _may_start(slot: Slot, now: float) -> bool:
    return slot.phase is Phase.ENDED and now >= slot.start_at


def _times(slots: Slots, wanted: Collection[str]) -> Iterable[float]:
    for folder, slot in slots.items():
        if folder in wanted and slot.phase is Phase.ENDED:
            yield slot.start_at
        elif slot.off_since is not None and slot.phase is not Phase.ENDING:
            yield slot.off_since + GRACE_S


def listening(slots: Slots, folder: str, now: float) -> dict[str, Slot]:
    """Take in that a daemon listens, with its ceilings."""
    return _moved(slots, folder, Phase.STARTING, phase=Phase.LISTENING, since=now)


def failed(slots: Slots, folder: str, now: float) -> dict[str, Slot]:
    """Take in that a daemon did not start, or ended unasked."""
    slot = slots.get(folder)
    if slot is None or slot.phase not in (Phase.STARTING, Phase.LISTENING):
        return dict(slots)
    was_steady = slot.phase is Phase.LISTENING and now - slot.since >= STEADY_S
    failures = 0 if was_steady else slot.failures + 1
    pause_s = min(PAUSE_S * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_S) if failures else 0.0
    return _moved(
        slots, folder, slot.phase, phase=Phase.ENDED, since=now, failures=failures, start_at=now + pause_s
    )


def gone(slots: Slots, folder: str) -> dict[str, Slot]:
    """Take in that a daemon was ended, and its folder removed."""
    return {each: slot for each, slot in slots.items() if each != folder}


def _moved(slots: Slots, folder: str, expected: Phase, **change: object) -> dict[str, Slot]:
    after, slot = dict(slots), slots.get(folder)
    if slot is not None and slot.phase is expected:
        after[folder] = replace(slot, **change)  # type: ignore[arg-type]  # fields of Slot
    return after


def listed(slots: Slots, needed: Iterable[Daemon]) -> list[str]:
    """Return the folders for the report: those of daemons that listen and that a lease needs."""
    wanted = {daemon.folder: daemon for daemon in needed}
    return sorted(
        folder
        for folder, slot in slots.items()
        if slot.phase is Phase.LISTENING and wanted.get(folder) == slot.daemon
    )


def leftovers(found: Iterable[str], now: float) -> dict[str, Slot]:
    """Return what a predecessor left, by folder: nothing runs there. If no lease needs a folder, it goes the
    way of all others."""
    return {folder: Slot(_NOBODY, Phase.ENDED, now, off_since=now) for folder in found}


_NOBODY = Daemon("", ())
