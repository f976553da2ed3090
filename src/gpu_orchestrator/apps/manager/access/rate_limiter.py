"""Lets requests in, by key and route, and agrees with the other processes once a second on how many were.

In one process a limit holds exactly. With several, what others let in within the last second is not known
yet: each may give a full burst once, and what was too much is then missing from the window of all. While the
store is away each counts for itself.
"""

import asyncio
import contextlib
from collections.abc import Callable
from math import ceil

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.usage import Spent, UsageStore
from gpu_orchestrator.api.rates import HOUR_S, MINUTE_S, Rate, by_route, rates
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.access.limits import allowance
from gpu_orchestrator.apps.manager.access.sliding_window import SLOTS, Meter, Window
from gpu_orchestrator.apps.manager.errors import TooManyRequests
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.schema import PREFIX

AGREE_S = 1.0
LOOK_FOR_S = 60.0
"""After a key was used here so long is looked at what others let in."""

LINGER_S, MOST_LINGERING = 0.2, 500


class RateLimiter:
    """`now` is the store's clock in seconds, the one that all processes share."""

    def __init__(
        self, usage: UsageStore, settings: Settings, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._usage, self._settings, self._metrics, self._now = usage, settings, metrics, now
        self._routes = by_route(settings.rate_limit_routes)
        self._meters: dict[tuple[str, str], Meter] = {}
        self._lingering = 0

    def take(self, key: Key, method: str, path: str, cost: int = 1) -> None:
        """Lets so many requests in at once or raises `TooManyRequests`."""
        if key.is_unlimited:
            return
        route = f"{method} {path.removeprefix(PREFIX)}" if self._routes else ""
        route = route if route in self._routes else ""
        meter = self._meters.get((key.id, route))
        if meter is None:
            meter = self._meters[key.id, route] = Meter(self._rates(key, route))
        if wait_s := meter.take(self._now(), cost):
            self._metrics.refused(key.owner, "rate")
            raise TooManyRequests(_message(meter.rates, route, wait_s), wait_s)

    def used(self, key: Key) -> tuple[int, int]:
        """Requests of the last minute and of the last hour, as far as they are counted: only where there is a
        limit, and not those of routes with rates of their own."""
        meter, now = self._meters.get((key.id, "")), self._now()
        windows = {window.rate.seconds: window.used(now) for window in meter.windows} if meter else {}
        return windows.get(MINUTE_S, 0), windows.get(HOUR_S, 0)

    async def linger(self) -> None:
        """Before a refusal is sent: who asks again at once is slowed by it, and costs others less. Who waits
        as told does not notice."""
        if self._lingering >= MOST_LINGERING:
            return
        self._lingering += 1
        try:
            await asyncio.sleep(LINGER_S)
        finally:
            self._lingering -= 1

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(AGREE_S)
            with contextlib.suppress(StoreError):
                await self.agree()

    async def agree(self) -> None:
        """What was not sent because of an error is sent the next time."""
        now = self._now()
        windows = {
            f"{':'.join(name)}:{window.rate.seconds:g}": window
            for name, meter in self._meters.items()
            if now - meter.asked < LOOK_FOR_S
            for window in meter.windows
        }
        self._meters = {name: meter for name, meter in self._meters.items() if not meter.is_idle(now)}
        if not windows:
            return
        spent = [_spent(name, window) for name, window in windows.items()]
        told = await self._usage.exchange_rates(spent)
        for window, sent, counts in zip(windows.values(), spent, told, strict=True):
            window.forget_sent(sent.counts)
            window.merge(counts)

    def _rates(self, key: Key, route: str) -> tuple[Rate, ...]:
        may = allowance(key.limits, self._settings)
        common = rates(may.per_minute, may.per_hour)
        return self._routes[route] if route and common else common


def _spent(name: str, window: Window) -> Spent:
    counts = tuple(number for pair in window.unsent.items() for number in pair)
    return Spent(name, int(window.slot_s * 1000), SLOTS, counts)


def _message(limits: tuple[Rate, ...], route: str, wait_s: float) -> str:
    said = " and ".join(f"{each.most} in {each.seconds:g} s" for each in limits)
    where = f" on {route}" if route else ""
    return f"this key may ask {said}{where}; ask again in {ceil(wait_s)} s, or send many tasks as one batch"
