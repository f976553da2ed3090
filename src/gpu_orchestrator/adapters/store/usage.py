"""What keys and owners use of what they may: requests let in, tasks that wait and run, GPU time of today."""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


class Spent(Item, frozen=True):
    """Of one window: `counts` are slots and counts in turn."""

    window: str
    slot_ms: int
    slots: int
    counts: tuple[int, ...]


class Usage(Item, frozen=True):
    """`gpu_ms` is what every owner used today, owners and numbers in turn; `queued` and `active` are tasks of
    the one who was asked for."""

    day_left_ms: int
    gpu_ms: tuple[str, ...]
    queued: int
    active: int

    def used_s(self) -> dict[str, float]:
        """GPU seconds of today by owner."""
        pairs = zip(self.gpu_ms[::2], self.gpu_ms[1::2], strict=True)
        return {owner: int(ms) / 1000 for owner, ms in pairs}


_USAGE = Script[Usage]("usage", Usage)
_RATE_COUNTS = Script[tuple[tuple[int, ...], ...]]("rate_counts", tuple[tuple[int, ...], ...])


class UsageStore:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def exchange_rates(self, spent: Sequence[Spent]) -> list[dict[int, int]]:
        """For each window what all processes have let in, by slot."""
        told = await self._fenced.read(_RATE_COUNTS, spent)
        return [dict(zip(each[::2], each[1::2], strict=True)) for each in told]

    async def of(self, owner: str = "") -> Usage:
        return await self._fenced.read(_USAGE, owner)
