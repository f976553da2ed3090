"""Room that is kept for preemptors while those in it end.

    kept ──▶ free: the preemptor is decided before all others
      │
      └────▶ let go: it waits no longer, a node was closed to it, or its victims do not end

What is kept counts as held in the engine, beside the victims. Other schedulers see it by
`status.nominatedNodeName` of the pods. Used by `controllers/preemption`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.preemptors import ROOM, Preemptor, room_for
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Together
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.victims import Steps
from gpu_orchestrator.engine.events import PlacementObserved, RequestRemoved, RoomReady

LONGEST_S = 900.0
"""How long room is kept for a pod whose victims do not end."""
MOST_LEFT = 1_000
"""Gangs of which it is known where pods end for them although their room was given up."""
NOTHING_LEFT = 0.0, frozenset[str]()
AT_ONCE = 16
"""Pods of a gang whose status is written at the same time."""


@dataclass(frozen=True, slots=True)
class Nomination:
    preemptor: Preemptor
    rooms: Together
    since: float
    going: tuple[str, ...] = ()
    """Keys of what its victims hold."""


class Nominated:
    def __init__(
        self, coordinator: Coordinator, pod_status: PodStatusWriter, clock: Callable[[], float], rng: Rng
    ) -> None:
        self._coordinator, self._pod_status = coordinator, pod_status
        self._clock, self._rng = clock, rng
        self._kept: dict[str, Nomination] = {}
        self._members: set[str] = set()
        self._stuck: dict[str, Placement] = {}
        """Of each preemptor a room that was not free when it was looked at."""
        self._left: dict[str, tuple[float, frozenset[str]]] = {}
        """By gang: since when and on which nodes pods may still end that were evicted for it."""

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, uid: str) -> bool:
        """Return True if room is kept for this pod."""
        return uid in self._members

    def going(self) -> Iterator[str]:
        """Yield the keys of what all victims hold."""
        return (key for each in self._kept.values() for key in each.going)

    def nodes_left(self, preemptor: Preemptor) -> frozenset[str]:
        """Return the nodes where pods may still end that were evicted for this gang with other members: it
        waits for their whole grace period, or a member that is replaced would cost others their place."""
        since, nodes = self._left.get(preemptor.gang.terms.name if preemptor.gang else "", NOTHING_LEFT)
        return nodes if self._clock() - since < LONGEST_S else frozenset()

    def keep(self, preemptor: Preemptor, places: Together, going: tuple[str, ...]) -> None:
        """Keep these places for it."""
        rooms = tuple(map(room_for, places))
        self._kept[preemptor.key] = Nomination(preemptor, rooms, self._clock(), going)
        self._members.update(each.key for each in preemptor.members)
        self._coordinator.feed(*(PlacementObserved(room, queue=preemptor.queue) for room in rooms))

    async def settle(self) -> None:
        """Let those be decided whose room is free, and let go of room that is of no use."""
        breath = Breath(self._clock)
        for uid, nomination in list(self._kept.items()):
            await breath()
            if not self.still_waits(uid) or self._clock() - nomination.since >= LONGEST_S:
                await self.let_go(uid)
            elif self._is_free(nomination):
                self._forget(nomination)
                self._coordinator.feed(RoomReady(tuple(room.key for room in nomination.rooms), uid))
            elif not await breath.result_of(self._may_become_free(nomination)):
                await self.let_go(uid)

    def still_waits(self, uid: str) -> bool:
        """Return False if one that room is kept for waits no longer, or a node is gone."""
        engine, nomination = self._coordinator.engine, self._kept[uid]
        return all(engine.waiting(each.key) == each for each in nomination.preemptor.members) and all(
            room.node in engine.cluster for room in nomination.rooms
        )

    def _is_free(self, nomination: Nomination) -> bool:
        engine, preemptor, rooms = self._coordinator.engine, nomination.preemptor, nomination.rooms
        if not all(engine.queues.has_what_it_holds(room.key) for room in rooms):
            return False
        twin, known = engine.unkept(preemptor.key), self._stuck.get(preemptor.key)
        if known is not None:  # mostly it is the same one still: thousands of others need not be asked
            _release((room for room in rooms if room.node == known.node), twin)
            if preemptor.stuck(twin, (known,)):
                return False
            twin = engine.unkept(preemptor.key)
        _release(rooms, twin)
        if (found := preemptor.stuck(twin, rooms)) is not None:
            self._stuck[preemptor.key] = found
            return False
        return preemptor.fits(twin, rooms, self._rng)

    def _may_become_free(self, nomination: Nomination) -> Steps[bool]:
        """Return, step by step, False if a node was closed, or a device failed."""
        twin = self._coordinator.engine.unkept(nomination.preemptor.key)
        for node in {room.node for room in nomination.rooms}:
            yield
            _release(tuple(twin.held_on(node).values()), twin)
        return (yield from nomination.preemptor.may_fit(twin, nomination.rooms, self._rng))

    async def let_go(self, uid: str) -> None:
        """Keep this room no longer."""
        nomination = self._kept[uid]
        self._forget(nomination)
        self._note_left(nomination)
        self._coordinator.feed(*(RequestRemoved(room.key) for room in nomination.rooms))
        await self.show(nomination.rooms, is_kept=False)  # other schedulers keep the room while it is shown

    def _note_left(self, nomination: Nomination) -> None:
        if nomination.preemptor.gang is None or not nomination.going:
            return
        nodes = self.nodes_left(nomination.preemptor) | {room.node for room in nomination.rooms}
        if len(self._left) >= MOST_LEFT:
            del self._left[next(iter(self._left))]
        name = nomination.preemptor.gang.terms.name
        self._left.pop(name, None)
        self._left[name] = self._clock(), nodes

    def _forget(self, nomination: Nomination) -> None:
        del self._kept[nomination.preemptor.key]
        self._stuck.pop(nomination.preemptor.key, None)
        self._members.difference_update(each.key for each in nomination.preemptor.members)

    async def show(self, places: Together, *, is_kept: bool = True) -> None:
        """Show in the status of the pods where room is kept for them."""
        ours = self._coordinator.our_pods
        pods = ((ours.get(each.key.removeprefix(ROOM)), each.node) for each in places)
        waiting = [(pod, node) for pod, node in pods if pod is not None and not pod.spec.node_name]
        for start in range(0, len(waiting), AT_ONCE):
            batch = waiting[start : start + AT_ONCE]
            await asyncio.gather(*(self._write(pod, node if is_kept else None) for pod, node in batch))

    async def _write(self, pod: Pod, node: str | None) -> None:
        try:
            latest = await self._pod_status.latest(pod)
            await self._pod_status.write(latest, {"status": {"nominatedNodeName": node}})
        except KubeError:  # it changed or went; that is only what others are shown
            return


def _release(placements: Iterable[Placement], cluster: Cluster) -> None:
    for each in placements:
        cluster.release(each)
