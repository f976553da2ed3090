"""What keys and owners use of what they may: requests let in, tasks that wait and run, GPU time of today."""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.link import Link
from gpu_orchestrator.adapters.store.scripts import Script
from gpu_orchestrator.adapters.store.values import Item


class Spent(Item, frozen=True):
    """Of one window: `counts` are slots and counts in turn."""

    window: str
    slot_ms: int
    slots: int
    counts: tuple[int, ...]


_TALLY = Script[tuple[tuple[int, ...], ...]]("tally", tuple[tuple[int, ...], ...])


class Shares:
    def __init__(self, link: Link) -> None:
        self._link = link

    async def tally(self, spent: Sequence[Spent]) -> list[dict[int, int]]:
        """For each window what all processes have let in, by slot."""
        told = await self._link.read(_TALLY, spent)
        return [dict(zip(each[::2], each[1::2], strict=True)) for each in told]
