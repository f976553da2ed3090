"""Usage of keys and owners: admitted requests, queued and active tasks, GPU time of the day."""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


class Spent(Item, frozen=True):
    """Requests admitted in one window; `counts` alternates slots and counts."""

    window: str
    slot_ms: int
    slots: int
    counts: tuple[int, ...]


class Usage(Item, frozen=True):
    """`gpu_ms` is today's use of every owner, alternating owners and numbers; `queued` and `active` count the
    tasks of the requested owner."""

    day_left_ms: int
    gpu_ms: tuple[str, ...]
    queued: int
    active: int

    def used_s(self) -> dict[str, float]:
        """Return today's GPU seconds by owner."""
        pairs = zip(self.gpu_ms[::2], self.gpu_ms[1::2], strict=True)
        return {owner: int(ms) / 1000 for owner, ms in pairs}


_USAGE = Script[Usage]("usage", Usage)
_RATE_COUNTS = Script[tuple[tuple[int, ...], ...]]("rate_counts", tuple[tuple[int, ...], ...])


class UsageStore:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def exchange_rates(self, spent: Sequence[Spent]) -> list[dict[int, int]]:
        """Add this process's counts; return for each window the requests that all processes admitted, by
        slot."""
        totals = await self._fenced.read(_RATE_COUNTS, spent)
        return [dict(zip(each[::2], each[1::2], strict=True)) for each in totals]

    async def of(self, owner: str = "") -> Usage:
        return await self._fenced.read(_USAGE, owner)
