"""Carry out moves: close the nodes that get room, evict what stands there, and open them again.

    ask (dry run) ──▶ close nodes ──▶ evict ──▶ wait until all have ended and run elsewhere ──▶ open nodes
         │ a budget forbids one                        │ not within `wait_s`                        ▲
         ▼                                             └────────────────────────────────────────────┤
     nothing was changed                        an error, Ctrl-C, SIGTERM ──────────────────────────┘

While the nodes are closed, pods that are made again go elsewhere; the scheduler is asked nothing. A node says
until when it is closed, so the next run opens what a run that was killed has left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_orchestrator.adapters.kube import pods as pod_calls
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound
from gpu_orchestrator.api import deviceleases, names, timestamps
from gpu_orchestrator.api.kubernetes import LEASES, NODES, PODS, Node, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.core.defragment import Moves

EVERY_S = 1.0
TRIES = 5
"""A node's status changes all the time, and so does the version that our write names."""
SPARE_S = 60.0
"""A node counts as left closed this long after the run that closed it should have ended."""

Tell = Callable[[str], None]


class NotMoved(Exception):
    """The moves were not made; the message says why, and what was done until then."""


@dataclass(frozen=True, slots=True)
class Performer:
    """`tell` is called with what happens. `lease_namespace` has the Leases of devices."""

    client: Client
    tell: Tell
    lease_namespace: str
    wait_s: float
    clock: Callable[[], float]

    async def perform(self, moves: Moves, found: Mapping[str, Pod]) -> None:
        """Make these moves; `found` are the pods by UID. Raises `NotMoved` or `KubeError`."""
        going = [found[each.key] for move in moves.moves for each in move.movable.members]
        for pod in going:
            await self._ask(pod)
        closed: list[str] = []
        try:
            for name in sorted({each.node for each in moves.room}):
                await self._close(name)
                closed.append(name)
            for pod in going:
                await self._evict(pod)
            await self._wait(going, moves)
        finally:
            await asyncio.shield(self._open_all(closed))

    async def _ask(self, pod: Pod) -> None:
        try:
            await pod_calls.evict(self.client, pod, dry_run=True)
        except KubeError as error:
            raise NotMoved(f"{key(pod)} may not be evicted: {error}; nothing was changed") from error

    async def _close(self, name: str) -> None:
        until = datetime.now(UTC) + timedelta(seconds=self.wait_s + SPARE_S)
        written = await self._change(name, was=False, until=timestamps.seconds(until))
        if not written:
            raise NotMoved(f"{name} was cordoned by somebody else meanwhile")
        self.tell(f"{name}: cordoned, so that nothing new comes")

    async def _open_all(self, closed: Iterable[str]) -> None:
        for name in closed:
            try:
                if await self._change(name, was=True, until=None):
                    self.tell(f"{name}: open again")
            except KubeError as error:
                self.tell(f"{name} is still cordoned: {error}; kubectl uncordon {name}")

    async def _change(self, name: str, *, was: bool, until: str | None) -> bool:
        """Cordon or open a node; return False if somebody else has done so, or it is gone."""
        for left in reversed(range(TRIES)):
            try:
                node = await self.client.get(NODES, name)
                if node.spec.unschedulable != was or (was and not is_closed_by_us(node)):
                    return False
                body = {
                    "metadata": {
                        "resourceVersion": node.metadata.resource_version,
                        "annotations": {names.CLOSED_UNTIL: until},
                    },
                    "spec": {"unschedulable": None if was else True},
                }
                await self.client.patch(NODES, name, body)
            except NotFound:
                return False
            except Conflict:
                if not left:
                    raise
            else:
                return True
        raise AssertionError("not reached")

    async def _evict(self, pod: Pod) -> None:
        try:
            await pod_calls.evict(self.client, pod)
        except KubeError as error:
            raise NotMoved(f"{key(pod)} was not evicted: {error}") from error
        self.tell(f"{key(pod)}: evicted from {pod.spec.node_name}")

    async def _wait(self, going: Sequence[Pod], moves: Moves) -> None:
        """Wait until the pods have ended, their devices are free, and those made again have nodes."""
        deadline = self.clock() + self.wait_s
        leases = [
            names.device_lease(place.node, device)
            for move in moves.moves
            for place in move.movable.held.placements
            for device in place.devices
        ]
        steps: tuple[tuple[str, Callable[[], Awaitable[str]]], ...] = (
            ("end", lambda: self._running(going)),
            ("give back their devices", lambda: self._leased(leases, going)),
            ("be placed elsewhere", lambda: self._waiting(going)),
        )
        for what, left in steps:
            while who := await left():
                if self.clock() >= deadline:
                    raise NotMoved(f"not all pods did {what} within {self.wait_s:g} s: {who}")
                await asyncio.sleep(EVERY_S)

    async def _running(self, going: Iterable[Pod]) -> str:
        for pod in going:
            try:
                now = await self.client.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except NotFound:
                continue
            is_same = now.metadata.uid == pod.metadata.uid
            if is_same and now.status.phase not in ("Succeeded", "Failed"):
                return key(pod)
        return ""

    async def _leased(self, leases: Iterable[str], going: Sequence[Pod]) -> str:
        """Return a Lease that one of these pods still has."""
        uids = {pod.metadata.uid for pod in going}
        for name in leases:
            try:
                lease = await self.client.get(LEASES, name, self.lease_namespace)
            except NotFound:
                continue
            if any(hold.holder.uid in uids for hold in deviceleases.holds(lease)):
                return name
        return ""

    async def _waiting(self, going: Iterable[Pod]) -> str:
        """Return a pod of the same controllers that has no node yet."""
        owners = {each.uid for pod in going for each in pod.metadata.owner_references if each.controller}
        for namespace in sorted({pod.metadata.namespace for pod in going}):
            unbound = await self.client.list(PODS, namespace, fields="spec.nodeName=")
            for pod in unbound.items:
                if owners & {each.uid for each in pod.metadata.owner_references} and not _has_ended(pod):
                    return key(pod)
        return ""

    async def open_left(self, nodes: Iterable[Node]) -> bool:
        """Open the nodes that a run has left closed which should have ended by now. Return True if there are
        such."""
        left = [node.metadata.name for node in nodes if is_left(node, datetime.now(UTC))]
        await self._open_all(left)
        return bool(left)


def is_closed_by_us(node: Node) -> bool:
    return node.spec.unschedulable and names.CLOSED_UNTIL in node.metadata.annotations


def is_left(node: Node, now: datetime) -> bool:
    """Return True if a run that was killed has left the node closed."""
    until = timestamps.parse_or_none(node.metadata.annotations.get(names.CLOSED_UNTIL, ""))
    return is_closed_by_us(node) and (until is None or until < now)


def _has_ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed") or bool(pod.metadata.deletion_timestamp)
