"""For whom others may be evicted: a pod that fits nowhere, or the members of a gang that must start together.

Used by `controllers/preemption`. A gang is one `Preemptor`, with the priority of the lowest of these members.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.preemptible import NEVER
from gpu_orchestrator.core import gang_victims, node_victims
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, decide_among, fits
from gpu_orchestrator.core.gang import Gang, GangRefusal, Together, decide_gang
from gpu_orchestrator.core.gang_victims import Asked, GangVictims
from gpu_orchestrator.core.node_victims import Victims, models_on
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.reclaim import ByQueues
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.victims import (
    Budgets,
    ByPriority,
    Evictable,
    NoVictims,
    Rules,
    Steps,
    result_of,
)
from gpu_orchestrator.engine.reservation_search import ROOM_MADE

Kind = tuple[Hashable, int, str]
"""What is asked for, with which priority, in which queue. Equal ones have equal victims."""


@dataclass(frozen=True, slots=True)
class Preemptor:
    """`gang` has exactly these members. `own` are keys of what must not be evicted for it: its gang."""

    members: tuple[Request, ...]
    policies: Mapping[str, Policy]
    gang: Gang | None = None
    own: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Return the key of the member that stands for all."""
        return self.members[0].key

    @property
    def priority(self) -> int:
        return min(each.priority for each in self.members)

    @property
    def queue(self) -> str:
        return self.members[0].queue

    @property
    def kind(self) -> Kind:
        if self.gang is None:
            return _kind(self.members[0])
        counts = frozenset(Counter(each.shape for each in self.members).items())
        return (counts, self.gang.terms.domain, self.gang.among), self.priority, self.queue

    def rooms(self, cluster: Cluster, rules: Rules, rng: Rng) -> Together:
        """Return where all members fit; nowhere if they do not."""
        if self.gang is not None:
            return gang_victims.rooms_without(self._asked(self.gang, rng), cluster, (), rules) or ()
        (member,) = self.members
        room = decide(member, cluster, self.policies[member.key], rng)
        is_room = isinstance(room, Placement) and rules.has_room((), models_on(cluster, room.node))
        return (room,) if isinstance(room, Placement) and is_room else ()

    def rooms_without(
        self, chosen: Victims | GangVictims, cluster: Cluster, rules: Rules, rng: Rng
    ) -> Together:
        """Return where all members fit once these victims are gone; nowhere if they do not."""
        gone = chosen.evictables
        if self.gang is not None:
            return gang_victims.rooms_without(self._asked(self.gang, rng), cluster, gone, rules) or ()
        (member,), node = self.members, chosen.node if isinstance(chosen, Victims) else ""
        if node not in cluster or not rules.has_room(gone, models_on(cluster, node)):
            return ()
        twin = _without(gone, cluster)
        if not fits(member.shape, twin, node):
            return ()
        room = decide_among([twin.row(node)], member, twin, self.policies[member.key], rng)
        return (room,) if isinstance(room, Placement) else ()

    def choosing(
        self, cluster: Cluster, evictables: Sequence[Evictable], budgets: Budgets, rules: Rules, rng: Rng
    ) -> Steps[Victims | GangVictims | NoVictims]:
        """Choose who must go for it, step by step."""
        if self.gang is not None:
            others = [each for each in evictables if each.key not in self.own]
            asked = self._asked(self.gang, rng)
            return (yield from gang_victims.choosing(asked, cluster, others, budgets, rules))
        (member,) = self.members
        policy = self.policies[member.key]
        return (yield from node_victims.choosing(member, cluster, policy, evictables, budgets, rules))

    def fits(self, cluster: Cluster, rooms: Together, rng: Rng) -> bool:
        """Return True if the members fit now on the nodes of their rooms, and so the gang anywhere."""
        if self.gang is None:
            return fits(self.members[0].shape, cluster, rooms[0].node)
        return result_of(self.may_fit(cluster, rooms, rng)) and not isinstance(
            decide_gang(self.gang, cluster, lambda each: self.policies[each.key], rng), GangRefusal
        )

    def stuck(self, cluster: Cluster, rooms: Iterable[Placement]) -> Placement | None:
        """Return a room on whose node its member does not fit, even alone."""
        members = {each.key: each for each in self.members}
        shaped = ((members[room.key.removeprefix(ROOM)].shape, room) for room in rooms)
        return next((room for shape, room in shaped if not fits(shape, cluster, room.node)), None)

    def may_fit(self, cluster: Cluster, rooms: Together, rng: Rng) -> Steps[bool]:
        """Return, step by step, whether each member fits on the node of its room, beside the others there."""
        twin, members = cluster.copy(), {each.key: each for each in self.members}
        for room in rooms:
            yield
            member = members[room.key.removeprefix(ROOM)]
            if not fits(member.shape, twin, room.node):
                return False
            made = decide_among([twin.row(room.node)], member, twin, self.policies[member.key], rng)
            if not isinstance(made, Placement):
                return False
            twin.place(made)
        return True

    def _asked(self, gang: Gang, rng: Rng) -> Asked:
        return Asked(gang, lambda each: self.policies[each.key], rng)


ROOM = ROOM_MADE
"""How the key begins under which room for a member is kept."""


def room_for(placement: Placement) -> Placement:
    """Return what is counted for a member until it has the place itself."""
    return replace(placement, key=f"{ROOM}{placement.key}")


def _kind(request: Request) -> Kind:
    return request.shape, request.priority, request.queue


def _without(gone: Iterable[Evictable], cluster: Cluster) -> Cluster:
    twin = cluster.copy()
    for placement in (place for each in gone for place in each.placements if place.node in twin):
        twin.release(placement)
    return twin


class _Waiting(NamedTuple):
    """A pod that waits, or the members of a gang. `preempts`: each may evict pods of lower priority."""

    members: tuple[Request, ...]
    kind: Kind
    preempts: bool


class Preemptors:
    """What waits, and may evict others."""

    def __init__(self, coordinator: Coordinator, is_nominated: Callable[[str], bool]) -> None:
        self._coordinator, self._is_nominated = coordinator, is_nominated

    def of(self, uid: str) -> Preemptor | None:
        """Return the preemptor that a waiting pod is, or is a member of; None if no room may be made for it
        now."""
        engine = self._coordinator.engine
        if engine.state_of(uid) != "parked":
            return None
        if (asked := engine.waiting_under(uid)) is not None:
            request, policy = asked
            return Preemptor((request,), {uid: policy})
        if (found := engine.gang_of(uid)) is None:
            return None
        members = found.gang.members[: found.gang.least]
        if any(self._is_nominated(each.key) for each in members):
            return None
        if len({each.queue for each in found.gang.members}) > 1:  # then none of them is started
            return None
        policies = {each.key: found.policies[each.key] for each in members}
        gang = replace(found.gang, members=members)
        return Preemptor(members, policies, gang, found.started | self._ends_with(uid))

    def _ends_with(self, uid: str) -> frozenset[str]:
        pod, stores = self._coordinator.our_pods.get(uid), self._coordinator.stores
        if pod is None:
            return frozenset()
        return frozenset({preemptible.ends_with(pod, stores.claim_spec(pod), stores.group_of(pod))})

    def in_turn(self, looked: Mapping[Kind, float], due: float) -> Steps[list[str]]:
        """Return, step by step, one pod of each kind that may evict others and was not looked at since `due`:
        those looked at longest ago first, and of those that never were the highest priority."""
        engine, ours = self._coordinator.engine, self._coordinator.our_pods
        if not engine.counts()["parked"]:
            return []
        lowest = min((pod.spec.priority for pod in ours.values() if pod.spec.node_name), default=None)
        if lowest is None:
            return []
        may_evict, turns = dict[tuple[Kind, bool], bool](), dict[Kind, tuple[float, int, str, str]]()
        for pod, waiting in self._waiting(lowest):
            yield
            if waiting is None or (last := looked.get(waiting.kind, -inf)) > due:
                continue
            kind, preempts = waiting.kind, waiting.preempts
            if (kind, preempts) not in may_evict:
                may_evict[kind, preempts] = self._may_evict(waiting)
            if may_evict[kind, preempts]:
                turn = last, -kind[1], pod.metadata.creation_timestamp, pod.metadata.uid
                turns[kind] = min(turn, turns.get(kind, turn))
        return [uid for *_, uid in sorted(turns.values())]

    def _waiting(self, lowest: int) -> Iterator[tuple[Pod, "_Waiting | None"]]:
        """Yield our pods, with what is asked for those that wait and have lower ones, or a queue; one of each
        gang."""
        engine, gangs = self._coordinator.engine, set[str]()
        has_queues = len(engine.queues) > 0
        for uid, pod in list(self._coordinator.our_pods.items()):
            is_low = pod.spec.priority <= lowest
            if pod.spec.node_name or (is_low and not has_queues) or self._is_nominated(uid):
                continue
            request = engine.waiting(uid)
            if request is None or (is_low and not request.queue) or engine.state_of(uid) != "parked":
                yield pod, None
            elif request.gang is None:
                yield pod, _Waiting((request,), _kind(request), pod.spec.preemption_policy != NEVER)
            elif request.gang.name not in gangs:
                gangs.add(request.gang.name)
                yield pod, self._waiting_gang(uid)

    def _waiting_gang(self, uid: str) -> "_Waiting | None":
        if (preemptor := self.of(uid)) is None:
            return None
        return _Waiting(preemptor.members, preemptor.kind, self._preempts(preemptor))

    def _preempts(self, preemptor: Preemptor) -> bool:
        """Return True if every member may evict pods of lower priority."""
        ours = self._coordinator.our_pods
        pods = (ours.get(each.key) for each in preemptor.members)
        return all(pod is not None and pod.spec.preemption_policy != NEVER for pod in pods)

    def _may_evict(self, waiting: "_Waiting") -> bool:
        if not waiting.members[0].queue:
            return waiting.preempts
        engine = self._coordinator.engine
        return ByQueues(
            waiting.members, engine.queues, engine.gpu_models, preempts=waiting.preempts
        ).may_evict

    def rules(self, preemptor: Preemptor, leaving: Collection[str]) -> Rules:
        """Return whom it may evict. `leaving` are the keys of placements that end soon anyway."""
        if not preemptor.queue:
            return ByPriority(preemptor.priority)
        engine = self._coordinator.engine
        preempts = self._preempts(preemptor)
        return ByQueues(
            preemptor.members, engine.queues, engine.gpu_models, leaving=leaving, preempts=preempts
        )

    def name(self, preemptor: Preemptor) -> str:
        """Return what events call it."""
        if preemptor.gang is not None:
            return f"gang {preemptor.gang.terms.name}"
        pod: Pod | None = self._coordinator.our_pods.get(preemptor.key)
        return key(pod) if pod is not None else preemptor.key
