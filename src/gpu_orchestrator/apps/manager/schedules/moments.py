"""Which moments of a schedule are run now, and which is the next. Pure: the leader passes the store's time.

Usually one moment is due, a second old. More are, or an old one is, after a time without a leader, or
without room for the task; what becomes of them the schedule says itself, as `missed`:

    run_once  the latest is run, the others are passed over
    run_all   all are run, in order, at most the latest `MOST_AT_ONCE`
    skip      none is run but one of the last `LATE_MS`
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from gpu_orchestrator.apps.manager.schedules.cron import Schedule

Missed = Literal["run_once", "run_all", "skip"]
MOST_AT_ONCE = 100
LATE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Due:
    """`run` are the moments to run, oldest first. `passed_over` counts those that are not, up to
    `MOST_AT_ONCE`. `following` is the next moment, 0 if there is none."""

    run: tuple[int, ...]
    passed_over: int
    following: int


def due(schedule: Schedule, promised_ms: int, now_ms: int, missed: Missed) -> Due:
    """Decide what to do about a schedule whose promised moment has come. `now_ms` is without its jitter."""
    found = _since(schedule, promised_ms, now_ms)
    if missed == "run_all":
        run = found[-MOST_AT_ONCE:]
    elif missed == "run_once" or now_ms - found[-1] <= LATE_MS:
        run = found[-1:]
    else:
        run = ()
    return Due(run, len(found) - len(run), schedule.after(max(now_ms, promised_ms)) or 0)


def _since(schedule: Schedule, promised_ms: int, now_ms: int) -> tuple[int, ...]:
    """Return the moments from the promised one until now, oldest first; of many, the latest. The promised one
    counts also if the rules of its time zone have changed since."""
    found: list[int] = []
    at = now_ms
    while len(found) <= MOST_AT_ONCE:
        moment = schedule.until(at)
        if moment is None or moment < promised_ms:
            break
        found.append(moment)
        at = moment - 1
    return tuple(reversed(found)) or (promised_ms,)


def delay_ms(name: str, jitter_ms: int) -> int:
    """Return how long after its moments a schedule fires: always the same, up to its jitter."""
    if not jitter_ms:
        return 0
    return int.from_bytes(sha256(f"jitter {name}".encode()).digest()[:8], "big") % (jitter_ms + 1)


def task_id(name: str, moment_ms: int) -> str:
    """Return the id of the task of one moment, which is the same for every leader that fires it."""
    return sha256(f"{name} {moment_ms}".encode()).hexdigest()[:32]
