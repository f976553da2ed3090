"""Read what a submission says about when and where its task may run: `not_before`, `expires` and the pool.

Pure but for errors of the API; `submission.py` calls it for each task of a request.
"""

from typing import NamedTuple

from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.units import DAY_S
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key

LONGEST_S = 366 * DAY_S


class Times(NamedTuple):
    """As `NewTask` has them: moments in ms; if negative, how long from now; 0 for none."""

    not_before_ms: int = 0
    expires_ms: int = 0


ANY_TIME = Times()


def times_of(request: task_schema.TaskRequest, now_s: float) -> Times:
    """Return when a task may begin. `now_s` is only for refusals: the store's clock decides."""
    if not request.not_before and not request.expires:
        return ANY_TIME
    now_ms = int(now_s * 1000)
    times = Times(_moment_ms("not_before", request.not_before), _moment_ms("expires", request.expires))
    begins_ms, ends_ms = (now_ms - each if each < 0 else each for each in times)
    if max(begins_ms, ends_ms) > now_ms + LONGEST_S * 1000:
        raise errors.Unprocessable(
            "not_before and expires reach at most 366 days ahead; give an earlier time"
        )
    if times.expires_ms and ends_ms <= now_ms:
        raise errors.Unprocessable(f"expires: {request.expires!r} has passed; give a time to come, or 1h")
    if times.expires_ms and ends_ms <= begins_ms:
        raise errors.Unprocessable(
            f"expires: {request.expires!r} is not after not_before ({request.not_before!r}), so the task "
            "could never begin; give a later time"
        )
    return times


def pool_of(wanted: str, key: Key) -> str:
    """Return the pool of a task: the one that it names, or else the only one that its key may use."""
    allowed = key.limits.pools
    if not allowed:
        return wanted
    return allowed[0] if not wanted and len(allowed) == 1 else pool_allowed(wanted, key)


def pool_allowed(wanted: str, key: Key) -> str:
    """Return the pool; raise `Forbidden` if a task of this key may not be in it."""
    allowed = key.limits.pools
    if not allowed or wanted in allowed:
        return wanted
    found = f"resources.pool is {wanted!r}" if wanted else "no pool is given"
    raise errors.Forbidden(
        f"this key ({key.id}) may use the pool{'s' if len(allowed) > 1 else ''} {', '.join(allowed)} alone; "
        f"{found}; name one of these in resources.pool"
    )


def _moment_ms(field: str, text: str) -> int:
    try:
        return timestamps.span_or_moment_ms(text, 2 * LONGEST_S)
    except (ValueError, OverflowError) as error:
        raise errors.Unprocessable(
            f"{field}: {text!r} is not a time; write how long from now, such as 10m, 2h or 7d, "
            "or a time, such as 2026-01-31T12:00:00Z"
        ) from error
