"""How the scheduler's engine keeps places: the settings, and how pods, leases and moments are called."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from gpu_orchestrator.api import names, run_times
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.engine.reservation_rules import ReservationRules

LEASE, ENDED = "lease/", "ended/"
DAY_S = 86_400.0


def rules(
    settings: Settings, pods: Callable[[], Mapping[str, Pod]], clock: Callable[[], float]
) -> ReservationRules:
    """Return the rules. `pods` returns our pods by UID, once there are any."""

    def name_of(uid: str) -> str:
        pod = pods().get(uid)
        return key(pod) if pod else "another pod"

    return ReservationRules(
        most=settings.reservations,
        holds=min(settings.holds, settings.reservations),
        hold_after_s=settings.reserve_after_seconds,
        hold_s=settings.hold_seconds,
        told=lambda moment: told(datetime.now(UTC), moment - clock()),
        name_of=name_of,
        owner_of=owner_of,
        declared=names.MAX_RUNTIME,
    )


def told(now: datetime, after_s: float) -> str:
    """Return a moment as its readers know it: `14:05 UTC`, with the day if it is far."""
    moment = now + timedelta(seconds=after_s)
    return moment.strftime("%H:%M UTC" if after_s < DAY_S / 2 else "%Y-%m-%d %H:%M UTC")


def owner_of(holder: str) -> str:
    """Return the UID of the pod for which the engine counts something under this key: for its lease, or
    after its end."""
    return holder.rpartition("/")[2] if holder.startswith((LEASE, ENDED)) else holder


def left_s(pod: Pod, *, enforced_only: bool) -> float | None:
    """Return how long a bound pod still runs at most; None if it does not say."""
    end = run_times.end(pod, enforced_only=enforced_only)
    return None if end is None else (end - datetime.now(UTC)).total_seconds()
