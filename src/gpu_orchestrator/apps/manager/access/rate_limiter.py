"""Limit the rate of requests by key and route. The guards of the routes call `take`.

Processes exchange their counts through the store once a second. Within one process a limit is exact. With
several, a process does not know what the others admitted within the last second: each may admit one full
burst, and the excess then counts against the window of all. While the store is unreachable each process
counts for itself.
"""

import asyncio
import contextlib
from collections.abc import Callable
from math import ceil

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.usage import Spent, UsageStore
from gpu_orchestrator.api.rates import HOUR_S, MINUTE_S, Rate, by_route, rates
from gpu_orchestrator.api.units import show_seconds
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.access.limits import allowance
from gpu_orchestrator.apps.manager.access.sliding_window import SLOTS, Meter, Window
from gpu_orchestrator.apps.manager.errors import TooManyRequests
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.schema import PREFIX

SYNC_S = 1.0
SYNC_AFTER_USE_S = 60.0
"""A key's counts are exchanged for this long after its last use in this process."""

EVERY = {MINUTE_S: "a minute", HOUR_S: "an hour"}

LINGER_S, MAX_LINGERING = 0.2, 500


class RateLimiter:
    """`now` returns the store's time in seconds, which all processes share."""

    def __init__(
        self, usage: UsageStore, settings: Settings, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._usage, self._settings, self._metrics, self._now = usage, settings, metrics, now
        self._routes = by_route(settings.rate_limit_routes)
        self._meters: dict[tuple[str, str], Meter] = {}
        self._lingering = 0

    def take(self, key: Key, method: str, path: str, cost: int = 1) -> None:
        """Admit `cost` requests at once, or raise `TooManyRequests`."""
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
        """Return the requests of the last minute and of the last hour. They are counted only where there is a
        limit, and without those on routes that have their own rates."""
        meter, now = self._meters.get((key.id, "")), self._now()
        windows = {window.rate.seconds: window.used(now) for window in meter.windows} if meter else {}
        return windows.get(MINUTE_S, 0), windows.get(HOUR_S, 0)

    async def linger(self) -> None:
        """Wait a moment before a refusal is sent. This slows down clients that retry at once, so that they
        cost others less. Clients that honour `Retry-After` do not notice."""
        if self._lingering >= MAX_LINGERING:
            return
        self._lingering += 1
        try:
            await asyncio.sleep(LINGER_S)
        finally:
            self._lingering -= 1

    async def run(self) -> None:
        """Exchange counts with the other processes every SYNC_S, forever."""
        while True:
            await asyncio.sleep(SYNC_S)
            with contextlib.suppress(StoreError):
                await self.sync()

    async def sync(self) -> None:
        """Exchange counts with the other processes. After an error the counts are sent the next time."""
        now = self._now()
        windows = {
            f"{':'.join(name)}:{window.rate.seconds:g}": window
            for name, meter in self._meters.items()
            if now - meter.last_used < SYNC_AFTER_USE_S
            for window in meter.windows
        }
        self._meters = {name: meter for name, meter in self._meters.items() if not meter.is_idle(now)}
        if not windows:
            return
        spent = [_spent(name, window) for name, window in windows.items()]
        received = await self._usage.exchange_rates(spent)
        for window, sent, counts in zip(windows.values(), spent, received, strict=True):
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
    first, *others = limits
    more = "".join(f" and {each.most} {EVERY[each.seconds]}" for each in others)
    where = f" to {route}" if route else ""
    requests = "1 request" if first.most == 1 else f"{first.most} requests"
    return (
        f"this key may send {requests} {EVERY[first.seconds]}{more}{where}; "
        f"retry in {show_seconds(ceil(wait_s))}, or send many tasks as one batch"
    )
