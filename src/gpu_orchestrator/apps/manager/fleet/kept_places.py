"""Places that the leader keeps for tasks and gangs which smaller ones would pass: in words, for `explain` and
lists, and as what is not free for others.

Pure. The leader writes them to the store, so that every process says the same.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gpu_orchestrator.api.task_gangs import split
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.kept import Kept
from gpu_orchestrator.engine.order import FairBands

STALE_S = 15.0
"""What was written longer ago is no longer kept: its writer leads no more."""


class Room(msgspec.Struct, frozen=True):
    """What is kept for one member on one worker."""

    key: str
    worker: str
    devices: tuple[int, ...]
    exclusive: bool
    memory_mib: int
    resources: tuple[tuple[str, int], ...] = ()

    @property
    def placement(self) -> Placement:
        return Placement(
            self.key,
            self.worker,
            self.devices,
            exclusive=self.exclusive,
            milli=0,
            memory_mib=self.memory_mib,
            resources=self.resources,
        )


class KeptPlace(msgspec.Struct, frozen=True):
    """`name` is a task's or a gang's id. Tasks that end before `until_s` are let in, and those of a higher
    band. `told` is when the place begins, or the end of a hold, as people read it."""

    name: str
    owner: str
    lane: int
    until_s: float
    told: str
    is_hold: bool
    rooms: tuple[Room, ...]

    @property
    def workers(self) -> list[str]:
        return list(dict.fromkeys(each.worker for each in self.rooms))

    def keeps_out(self, task: Request, now: float) -> bool:
        ends_before = 0.0 < task.run_s <= self.until_s - now
        return not (self.is_for(task.key) or ends_before or FairBands().lane(task) > self.lane)

    def is_for(self, task: str) -> bool:
        return self.name == split(task)[0]

    @property
    def words(self) -> str:
        """Return what its owner is told."""
        count = len(self.workers)
        where = f"its place on {self.workers[0]} is" if count == 1 else f"its places on {count} workers are"
        if self.is_hold:
            return f"{where} kept until {self.told}, since some there may run for longer than a day"
        return f"{where} kept: it begins by {self.told}, or as soon as those there end"

    def words_for(self, owner: str) -> str:
        """Return what the owner of another task is told, which would fit there now."""
        name = self.name if owner == self.owner else "another owner's task"
        where = self.workers[0] if len(self.workers) == 1 else f"{len(self.workers)} workers"
        how_long = f"until {self.told}" if self.is_hold else f"which begins by {self.told}"
        return f"the place on {where} that would take it is kept for {name}, {how_long}"


class Written(msgspec.Struct, frozen=True):
    """What the leader writes, and when by the store's clock."""

    at_s: float = 0.0
    places: tuple[KeptPlace, ...] = ()


_decode = msgspec.json.Decoder(Written).decode


def of(kept: Kept) -> KeptPlace:
    request = kept.waiting.request
    rooms = (
        Room(each.key, each.node, each.devices, each.exclusive, each.memory_mib, each.resources)
        for each in kept.rooms
    )
    return KeptPlace(
        kept.name,
        request.tenant,
        kept.waiting.lane,
        kept.until,
        kept.begins,
        kept.is_hold,
        tuple(rooms),
    )


def encoded(places: Sequence[KeptPlace], now: float) -> bytes:
    return msgspec.json.encode(Written(now, tuple(places)))


def read(text: bytes, now: float) -> tuple[KeptPlace, ...]:
    """Return what was written, if that was not too long ago and can be read."""
    try:
        written = _decode(text) if text else Written()
    except msgspec.MsgspecError:  # a newer server's
        return ()
    return written.places if written.at_s > now - STALE_S else ()


def words_of(places: Iterable[KeptPlace], task: str) -> str:
    """Return what the owner of a task, or of its gang, is told of its place; empty if it has none."""
    return next((each.words for each in places if each.is_for(task)), "")


def beside(cluster: Cluster, places: Iterable[KeptPlace]) -> Cluster:
    """Return the cluster as it is for those whom these places keep out."""
    rooms = [room for each in places for room in each.rooms if room.worker in cluster]
    if not rooms:
        return cluster
    twin = cluster.copy()
    for room in rooms:
        twin.account(room.placement)
    return twin
