"""Which node a GPU belongs to if several nodes report its UUID. Kept by `node_view`.

It belongs to the node whose GpuNodeStatus was created first; among those of one second, to the first by name.
So every scheduler, also the next leader, comes to the same answer without asking another. The others' devices
of that UUID are duplicates: given to pods, one GPU would be given twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus

Rank = tuple[str, str]
"""When a node's report was created, and the node's name: the lowest rank owns the GPU."""


@dataclass(frozen=True, slots=True)
class Reported:
    """`uuids` has the UUID of each device that has one."""

    rank: Rank
    uuids: dict[int, str]


class DeviceOwners:
    def __init__(self) -> None:
        self._reported: dict[str, Reported] = {}
        self._ranks: dict[str, dict[str, Rank]] = {}
        """By UUID: the nodes that report it."""

    def observe(self, node: str, report: GpuNodeStatus | None) -> set[str]:
        """Record what a node reports; None if it is gone or reports nothing. Return the other nodes whose
        duplicates may be others now."""
        now = _read(node, report) if report else None
        if now == self._reported.get(node):
            return set()
        return (self._forget(node) | self._record(node, now)) - {node}

    def _forget(self, node: str) -> set[str]:
        """Remove what the node has reported, and return all that reported one of its devices."""
        others, before = set[str](), self._reported.pop(node, None)
        for uuid in set(before.uuids.values()) if before else ():
            others.update(self._ranks[uuid])
            del self._ranks[uuid][node]
            if not self._ranks[uuid]:
                del self._ranks[uuid]
        return others

    def _record(self, node: str, now: Reported | None) -> set[str]:
        """Keep what the node reports, and return all that report one of its devices."""
        if now is None:
            return set()
        others, self._reported[node] = set[str](), now
        for uuid in now.uuids.values():
            ranks = self._ranks.setdefault(uuid, {})
            ranks[node] = now.rank
            others.update(ranks)
        return others

    def duplicates(self, node: str) -> dict[int, str]:
        """Return which devices of a node belong to another, or are listed twice: by id, the owner."""
        reported = self._reported.get(node)
        return dict(self._duplicates(node, reported)) if reported else {}

    def _duplicates(self, node: str, reported: Reported) -> Iterator[tuple[int, str]]:
        seen = set[str]()
        for device, uuid in reported.uuids.items():
            ranks = self._ranks[uuid]
            owner = node if len(ranks) == 1 else min(ranks, key=lambda each: ranks[each])
            if owner != node or uuid in seen:
                yield device, owner
            seen.add(uuid)


def _read(node: str, report: GpuNodeStatus) -> Reported:
    uuids = {each.id: each.uuid for each in inventory.whole_devices(report) if each.uuid}
    return Reported((report.metadata.creation_timestamp, node), uuids)
