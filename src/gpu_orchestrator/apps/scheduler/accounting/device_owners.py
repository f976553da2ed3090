"""Which devices of a node are in dispute: another node reports the same UUID. Kept by `node_view`.

One GPU is in one node, so at least one of the reports is wrong, and which one is not known. Neither gets new
claims for it. Three things settle a dispute, each the same for every scheduler and in any order of reports:

    a report that does not stand        loses to one that does: its agent is silent, or its node is cordoned
    a node that disputes several nodes  loses to one that disputes it alone
    a UUID that one node lists twice    is that node's, once

The second bounds what one bad agent can do. It may write its own node's report only, so the UUIDs that it
copies from many nodes bar none of them, and those that it copies from one node bar that one, until an
administrator cordons the bad node.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus

SEVERAL = 3
"""Reporters of one UUID from which each of them disputes several nodes."""

Weakness = tuple[bool, bool]
"""Whether a node's report does not stand, and whether the node disputes several others: the least wins."""


class DeviceOwners:
    """`stands` returns whether the report of a node may keep others from a device. A change costs what the
    node reports, not how many others report the same: a whole cluster may run agents with one file of
    simulated devices."""

    def __init__(self, stands: Callable[[str], bool]) -> None:
        self._stands = stands
        self._uuids: dict[str, dict[int, str]] = {}
        self._weakness: dict[str, Weakness] = {}
        self._reporters: dict[str, dict[str, None]] = {}
        self._counts: dict[str, Counter[Weakness]] = {}
        """By UUID: the nodes that report it, and how many of them have each weakness."""

    def observe(self, node: str, report: GpuNodeStatus | None) -> set[str]:
        """Record what a node reports; None if it is gone or reports nothing. Return the other nodes whose
        duplicates may be others now."""
        before, now = self._uuids.get(node, {}), _uuids(report) if report else {}
        if now == before:
            return self.restand(node) - {node}
        touched = {*before.values(), *now.values()}
        affected = self._concerned(touched)
        self._remove(node)
        if now:
            self._uuids[node] = now
            self._add(node)
        affected |= self._concerned(touched)
        return self._reweigh({*affected, node}) - {node}

    def restand(self, node: str) -> set[str]:
        """Look again whether a node's report stands. Return the nodes whose duplicates may be others now."""
        if node not in self._uuids or self._weigh(node) == self._weakness[node]:
            return set()
        return self._reweigh({node})

    def disputed(self) -> list[str]:
        """Return the nodes that report a UUID which another reports as well."""
        return [
            node for node in self._uuids if any(len(self._reporters[each]) > 1 for each in self._of(node))
        ]

    def duplicates(self, node: str) -> dict[int, str]:
        """Return which devices of a node are not given, by id: another node that reports the device, or the
        node itself for one that it lists twice."""
        found, seen = dict[int, str](), set[str]()
        for device, uuid in self._uuids.get(node, {}).items():
            if uuid in seen:
                found[device] = node
            elif self._winner(uuid) != node:
                found[device] = next(each for each in self._reporters[uuid] if each != node)
            seen.add(uuid)
        return found

    def _winner(self, uuid: str) -> str:
        """Return the node that has this GPU; empty if that is in dispute."""
        counts = self._counts.get(uuid)
        if not counts or counts[best := min(counts)] > 1:
            return ""
        return next(node for node in self._reporters[uuid] if self._weakness[node] == best)

    def _concerned(self, uuids: Iterable[str]) -> set[str]:
        """Return the nodes whose rivals, or whose right to a device, depend on who else reports these."""
        return {node for uuid in uuids for node in self._concerned_by(uuid)} - {""}

    def _concerned_by(self, uuid: str) -> Iterator[str]:
        reporters = self._reporters.get(uuid, {})
        yield from reporters if len(reporters) <= SEVERAL else ()
        yield self._winner(uuid)

    def _reweigh(self, nodes: set[str]) -> set[str]:
        """Weigh these nodes again, and return them with all whose right to a device that changes."""
        affected = set(nodes)
        for node in nodes:
            if node in self._uuids and (now := self._weigh(node)) != self._weakness[node]:
                uuids = self._of(node)
                affected |= self._concerned(uuids)
                for uuid in uuids:
                    self._counts[uuid] += Counter({now: 1, self._weakness[node]: -1})
                self._weakness[node] = now
                affected |= self._concerned(uuids)
        return affected

    def _add(self, node: str) -> None:
        self._weakness[node] = weakness = True, True
        for uuid in self._of(node):
            self._reporters.setdefault(uuid, {})[node] = None
            self._counts.setdefault(uuid, Counter())[weakness] += 1

    def _remove(self, node: str) -> None:
        for uuid in self._of(node):
            del self._reporters[uuid][node]
            self._counts[uuid] -= Counter([self._weakness[node]])
            if not self._reporters[uuid]:
                del self._reporters[uuid], self._counts[uuid]
        self._uuids.pop(node, None)
        self._weakness.pop(node, None)

    def _of(self, node: str) -> set[str]:
        return set(self._uuids.get(node, {}).values())

    def _weigh(self, node: str) -> Weakness:
        rivals = set[str]()
        for uuid in self._of(node):
            if len(reporters := self._reporters[uuid]) >= SEVERAL:
                return not self._stands(node), True
            rivals.update(reporters)
        return not self._stands(node), len(rivals - {node}) > 1


def _uuids(report: GpuNodeStatus) -> dict[int, str]:
    return {each.id: each.uuid for each in report.status.devices if each.uuid}
