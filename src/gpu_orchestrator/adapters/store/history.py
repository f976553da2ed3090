"""The cluster's history: one ring of buckets per timeframe. A ring overwrites its oldest bucket, so its size
is fixed. The leader writes, every process reads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script


@dataclass(frozen=True, slots=True)
class Ring:
    """A fixed number of buckets of equal duration."""

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
    """`number` counts buckets since 1970. `sums` adds up all samples and `greatest` holds their maximum;
    `counters` holds the values at the end of the bucket."""

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
        """Add a sample to each ring. Return False, and write nothing, if this process does not lead."""
        sizes = [(each.name, each.bucket_ms, each.buckets) for each in rings]
        return await self._fenced.write(_RECORD, sizes, [part for item in measured.items() for part in item])

    async def read(self, ring: Ring) -> list[Bucket]:
        """Return the buckets, oldest first; a bucket without samples is missing."""
        _, found = await self._fenced.read(_HISTORY, ring.name, ring.bucket_ms, ring.buckets)
        return sorted(found, key=lambda each: each.number)
