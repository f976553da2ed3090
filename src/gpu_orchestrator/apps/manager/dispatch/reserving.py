"""How the dispatcher's engine keeps places for tasks and gangs that smaller ones pass: the settings, and how
moments are written."""

from collections.abc import Callable
from datetime import UTC, datetime

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.engine.reservation_rules import ReservationRules

FAR_S = 43_200.0


def rules(settings: Settings, now: Callable[[], float]) -> ReservationRules:
    """Return the rules. `now` returns the store's clock. Every task declares an end: its timeout, which the
    worker enforces."""
    return ReservationRules(
        most=settings.reservations,
        holds=min(settings.holds, settings.reservations),
        hold_after_s=settings.reserve_after,
        hold_s=settings.hold_time,
        told=lambda moment: told(moment, now()),
        only_passed=True,
    )


def told(moment: float, now: float) -> str:
    """Return a moment as people read it: `14:05:30 UTC`, with the day if it is far."""
    at = datetime.fromtimestamp(moment, UTC)
    return at.strftime("%H:%M:%S UTC" if moment - now < FAR_S else "%Y-%m-%d %H:%M UTC")
