"""The cluster's history: one ring of buckets per timeframe, overwritten when it comes round, so that it stays
as large as it is. The leader writes, every process reads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


@dataclass(frozen=True, slots=True)
class Ring:
    """So many buckets of so many seconds."""

    name: str
    bucket_ms: int
    buckets: int

    @property
    def bucket_s(self) -> int:
        return self.bucket_ms // 1000


RINGS = {
    each.name: each
    for each in (
        Ring("1h", 10_000, 360),
        Ring("24h", 300_000, 288),
        Ring("7d", 1_800_000, 336),
        Ring("30d", 7_200_000, 360),
    )
}


class Bucket(Item, frozen=True):
    """`number` counts buckets since 1970. `sums` are over all samples, `greatest` the largest of them;
    `counters` are as they were at the end."""

    number: int
    samples: int
    sums: dict[str, float]
    greatest: dict[str, float]
    counters: dict[str, int]

    def mean(self, name: str) -> float:
        return self.sums.get(name, 0.0) / self.samples


_RECORD = Script[bool]("record", bool)
_HISTORY = Script[tuple[int, tuple[Bucket, ...]]]("history", tuple[int, tuple[Bucket, ...]])


class History:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def record(self, measured: Mapping[str, float], rings: Iterable[Ring] = RINGS.values()) -> bool:
        """Only the leader's counts."""
        sizes = [(each.name, each.bucket_ms, each.buckets) for each in rings]
        return await self._fenced.write(_RECORD, sizes, [part for item in measured.items() for part in item])

    async def read(self, ring: Ring) -> list[Bucket]:
        """Oldest first; a bucket in which nobody wrote is missing."""
        _, found = await self._fenced.read(_HISTORY, ring.name, ring.bucket_ms, ring.buckets)
        return sorted(found, key=lambda each: each.number)
