"""Evict pods for one that fits nowhere, and keep their room for it: those of lower priority, or those of
queues that borrow what its queue is guaranteed.

    waits ──▶ nominated: its victims are evicted, and their devices are counted as its own as well
                 │ they have ended                │ it is gone, its node is closed, or a budget stops us
                 ▼                                ▼
              decided again, before all others

Room that pods leave which end soon anyway is kept in the same way, so after a restart no more are evicted.
The victims are the fewest that suffice (`core/victims.py`). A gang is evicted whole; its members preempt
nothing.

To choose victims is long work, and the cluster changes meanwhile: what was chosen is checked again in the
turn in which the room is kept. A pass that has taken long ends, and the next one looks at others first.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import TypeVar

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import BlockedByBudget, KubeError
from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import DISRUPTION_BUDGETS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.holdings import ended_key
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import EndedPod
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.preemptible import NEVER, Budget
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, decide_among, fits
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.reclaim import ByQueues
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.victims import (
    ByPriority,
    Evictable,
    NoVictims,
    Rules,
    Steps,
    Victims,
    choosing,
    models_on,
)
from gpu_orchestrator.engine.events import PlacementObserved, RequestRemoved, RoomReady

EVERY_S = 1.0
REST = 4.0
"""How many times as long as it took a pass is followed by a rest."""
LONGEST_S = 900.0
"""How long room is kept for a pod whose victims do not end."""
MOST_NOMINATED = 64
LONGEST_PASS_S = 0.3
"""After this long no more pods are looked at in one pass: it costs the others a part of their time."""
RETRY_S = 5.0
"""A request for which nobody can be evicted is looked at again after this, behind those never looked at."""
MOST_KNOWN = 10_000

T = TypeVar("T")
Kind = tuple[Shape, int, str]
"""Shape, priority and queue."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Nomination:
    request: Request
    room: Placement
    since: float
    going: tuple[str, ...] = ()
    """Keys of what its victims hold."""


class PreemptionController:
    """`may_write` returns whether we lead; `evicts` is called with each pod that is evicted; `ended_since`
    returns the pods that ended since then, and whose devices are not free yet."""

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        pod_status: PodStatusWriter,
        reporter: Reporter,
        *,
        metrics: Metrics,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        rng: Rng,
        evicts: Callable[[Pod, str], None] = lambda pod, why: None,
        ended_since: Callable[[float], Iterable[EndedPod]] = lambda moment: (),
    ) -> None:
        self._client, self._coordinator, self._pod_status = client, coordinator, pod_status
        self._reporter, self._metrics = reporter, metrics
        self._may_write, self._clock, self._rng = may_write, clock, rng
        self._evicts, self._ended_since = evicts, ended_since
        self._nominated: dict[str, Nomination] = {}
        self._looked: dict[Kind, float] = {}
        """When no victims were found."""
        self._asked_s = 0.0
        """How long this pass has waited for answers of the API server: that costs the others nothing."""

    async def run(self) -> None:
        took_s = 0.0
        while True:
            await asyncio.sleep(max(EVERY_S, REST * took_s))
            began = self._clock()
            try:
                await self.check()
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("preemption")
                log.exception("preemption not checked")
            took_s = self._clock() - began - self._asked_s

    async def check(self) -> None:
        """Let nominated pods be decided whose room is free, and nominate others."""
        await self._settle()
        began, self._asked_s = self._clock(), 0.0
        while self._may_write() and len(self._nominated) < MOST_NOMINATED:
            candidates = self._candidates()
            if not candidates or not await self._look_at(candidates):
                return
            if self._clock() - began - self._asked_s >= LONGEST_PASS_S:
                return

    async def _settle(self) -> None:
        engine = self._coordinator.engine
        for uid, nomination in list(self._nominated.items()):
            waits = engine.waiting(uid) == nomination.request and nomination.room.node in engine.cluster
            if not waits or self._clock() - nomination.since >= LONGEST_S:
                await self._let_go(uid)
                continue
            twin, node = engine.unkept(uid), nomination.room.node
            twin.release(nomination.room)
            has_room = engine.queues.has_what_it_holds(nomination.room.key)
            if has_room and fits(nomination.request.shape, twin, node):
                del self._nominated[uid]
                self._coordinator.feed(RoomReady(nomination.room.key, uid))
                continue
            for placement in twin.held_on(node).values():
                twin.release(placement)
            if not fits(nomination.request.shape, twin, node):  # the node was closed, or a device failed
                await self._let_go(uid)

    async def _let_go(self, uid: str) -> None:
        nomination = self._nominated.pop(uid)
        self._coordinator.feed(RequestRemoved(nomination.room.key))
        pod = self._coordinator.our_pods.get(uid)
        if pod is not None and not pod.spec.node_name:
            await self._show(pod, None)  # other schedulers keep the room while it is shown

    def _candidates(self) -> list[str]:
        """Return one pod of each request that may preempt: those looked at longest ago first, and of those
        that never were the highest priority."""
        engine, ours = self._coordinator.engine, self._coordinator.our_pods
        if not engine.counts()["parked"]:
            return []
        bound = [pod.spec.priority for pod in ours.values() if pod.spec.node_name]
        lowest = min(bound, default=None)
        if lowest is None:
            return []
        has_queues, may_evict = len(engine.queues) > 0, dict[tuple[Kind, str], bool]()
        due, kinds = self._clock() - RETRY_S, dict[Kind, tuple[float, int, str, str]]()
        for uid, pod in ours.items():
            is_low = pod.spec.priority <= lowest
            if (is_low and not has_queues) or (request := self._asked(uid, pod)) is None:
                continue
            if is_low and not request.queue:
                continue
            kind = request.shape, request.priority, request.queue
            terms = kind, pod.spec.preemption_policy
            if terms not in may_evict:
                may_evict[terms] = self._may_evict(pod, request)
            if not may_evict[terms]:
                continue
            looked = self._looked.get(kind, -inf)
            turn = looked, -pod.spec.priority, pod.metadata.creation_timestamp, uid
            if looked <= due:
                kinds[kind] = min(turn, kinds.get(kind, turn))
        return [uid for *_, uid in sorted(kinds.values())]

    def _asked(self, uid: str, pod: Pod) -> Request | None:
        """Return what the pod waits for, if room may be made for it."""
        if pod.spec.node_name or uid in self._nominated:
            return None
        engine = self._coordinator.engine
        request = engine.waiting(uid)
        if request is None or request.gang is not None or engine.state_of(uid) != "parked":
            return None
        return request

    def _may_evict(self, pod: Pod, request: Request) -> bool:
        rules = self._rules(pod, request, ())
        return rules.may_evict if isinstance(rules, ByQueues) else pod.spec.preemption_policy != NEVER

    def _rules(self, pod: Pod, request: Request, leaving: Iterable[Placement]) -> Rules:
        """Return whom the pod may evict."""
        if not request.queue:
            return ByPriority(request.priority)
        engine, preempts = self._coordinator.engine, pod.spec.preemption_policy != NEVER
        evicted = (key for each in self._nominated.values() for key in each.going)
        keys = {*(each.key for each in leaving), *evicted}
        return ByQueues(request, engine.queues, engine.gpu_models, leaving=keys, preempts=preempts)

    async def _look_at(self, candidates: list[str]) -> bool:
        """Nominate those for which others end anyway, and the first for which some are evicted: the budgets
        allow less then. Return True if it came to that."""
        breath = Breath(self._clock)
        asked_at = self._clock()
        guards = preemptible.budgets((await self._client.list(DISRUPTION_BUDGETS)).items)
        self._asked_s += self._clock() - asked_at
        allowed = {each.name: each.allowed for each in guards}
        found, began = await _through(self._evictables(guards), breath), self._clock()
        for uid in candidates:
            engine = self._coordinator.engine
            if not self._may_write() or len(self._nominated) >= MOST_NOMINATED:
                return False
            asked = engine.waiting_under(uid)
            if asked is None or engine.state_of(uid) != "parked":
                continue
            request, policy = asked
            if engine.is_kept_out(uid):  # nobody need go for it, and it must not go before another
                self._rest(request)
                continue
            twin, rules = self._without_leaving(uid, request)
            room = decide(request, twin, policy, self._rng)
            if isinstance(room, Placement) and rules.has_room((), models_on(twin, room.node)):
                await self._nominate(uid, request, room, ())
                continue
            answer = await _through(choosing(request, twin, policy, found, allowed, rules), breath)
            if isinstance(answer, NoVictims):
                self._give_up(uid, request, answer)
            elif (made := self._room(uid, request, policy, answer)) is not None:
                await self._nominate(uid, request, made, answer.evictables)
                return True
            if self._clock() - began >= LONGEST_PASS_S:
                return False
        return False

    def _room(self, uid: str, request: Request, policy: Policy, chosen: Victims) -> Placement | None:
        """Return the room that these victims leave; None if that has changed while they were chosen."""
        engine = self._coordinator.engine
        if engine.waiting(uid) != request or engine.state_of(uid) != "parked":
            return None
        twin, rules = self._without_leaving(uid, request)
        if not (all(map(rules.may_go, chosen.evictables)) and rules.allows(chosen.evictables)):
            return None
        for placement in (each for victim in chosen.evictables for each in victim.placements):
            if placement.node not in twin or twin.held_on(placement.node).get(placement.key) != placement:
                return None
            twin.release(placement)
        if chosen.node not in twin or not fits(request.shape, twin, chosen.node):
            return None
        if not rules.has_room(chosen.evictables, models_on(twin, chosen.node)):
            return None
        room = decide_among([twin.row(chosen.node)], request, twin, policy, self._rng)
        return room if isinstance(room, Placement) else None

    def _give_up(self, uid: str, request: Request, answer: NoVictims) -> None:
        self._rest(request)
        if answer.forbidden and (pod := self._coordinator.our_pods.get(uid)) is not None:
            self._metrics.preemptions.labels("blocked").inc()
            self._reporter.report_preemption(pod, names.NOT_PREEMPTED, answer.message)

    def _rest(self, request: Request) -> None:
        """Look at requests like this one again after a while."""
        if len(self._looked) >= MOST_KNOWN:
            del self._looked[next(iter(self._looked))]
        kind = request.shape, request.priority, request.queue
        self._looked.pop(kind, None)
        self._looked[kind] = self._clock()

    def _without_leaving(self, uid: str, request: Request) -> tuple[Cluster, Rules]:
        """Return the cluster as it is when what ends soon anyway has ended, as far as this pod waits for
        that, and whom it may evict then."""
        twin, now = self._coordinator.engine.unkept(uid), datetime.now(UTC)
        ours = self._coordinator.our_pods
        room = ours[uid].status.nominated_node_name if uid in ours else ""
        leaving = [
            (pod.metadata.uid, pod.spec.node_name)
            for pod in ours.values()
            if pod.metadata.deletion_timestamp
            and pod.spec.node_name
            and preemptible.ends_soon(pod, now, has_room=self._gives_room(pod, request, room))
        ]
        ended = self._ended_since(self._clock() - preemptible.SOON_S)
        ends = (*leaving, *((each.uid, each.node) for each in ended))
        going = {each.key: each for one, node in ends for each in self._held(one, node)}
        for placement in going.values():
            twin.release(placement)
        return twin, self._rules(ours[uid], request, going.values())

    def _gives_room(self, pod: Pod, request: Request, promised: str) -> bool:
        """Return True if the pod may have been evicted for the one that was promised this node: it has a part
        of the room there or, on any node, of what the queues above both may use."""
        if not promised or pod.spec.node_name == promised:
            return bool(promised)
        queues = self._coordinator.engine.queues
        held = self._held(pod.metadata.uid, pod.spec.node_name)
        theirs = (queues.node(queues.queue_of(each.key)) for each in held)
        mine = queues.node(request.queue)
        return mine is not None and any(each and not set(each.path).isdisjoint(mine.path) for each in theirs)

    def _evictables(self, guards: list[Budget]) -> Steps[list[Evictable]]:
        ours, stores = self._coordinator.our_pods.values(), self._coordinator.stores
        return preemptible.evictables(
            [pod for pod in ours if pod.spec.node_name],
            lambda pod: self._held(pod.metadata.uid, pod.spec.node_name),
            stores.claim_spec,
            stores.group_of,
            guards,
            datetime.now(UTC),
        )

    def _held(self, uid: str, node: str) -> tuple[Placement, ...]:
        """Return what counts of a bound or ended pod, by itself or by its leases."""
        cluster = self._coordinator.engine.cluster
        if node not in cluster:
            return ()
        leased = (hold.placement.key for hold in self._coordinator.lease_index.holds(uid))
        keys = {uid, ended_key(uid), *leased}
        on_node = cluster.held_on(node)
        return tuple(on_node[each] for each in keys if each in on_node)

    async def _nominate(
        self, uid: str, request: Request, room: Placement, victims: tuple[Evictable, ...]
    ) -> None:
        """Keep the room, and evict who is in it. If a budget forbids one after all, nobody else goes."""
        ours = self._coordinator.our_pods
        room = replace(room, key=f"room/{uid}")
        held = {placement.key for each in victims for placement in each.placements}
        going = [ours[each] for each in sorted(held) if each in ours]
        self._nominated[uid] = Nomination(request, room, self._clock(), tuple(held))
        queues, pod = self._coordinator.engine.queues, ours[uid]
        reclaimed = {each for each in held if queues.queue_of(each) not in ("", request.queue)}
        self._coordinator.feed(PlacementObserved(room, queue=request.queue))
        asked_at = self._clock()
        log.info("pod nominated", pod=key(pod), node=room.node, victims=[key(each) for each in going])
        if going:
            listed = _listed(key(each) for each in going)
            of = f"to have what queue {request.queue} is guaranteed" if reclaimed else "of lower priority"
            said = f"evicts {listed}, {of}, and waits for their end on {room.node}"
            self._reporter.report_preemption(pod, names.PREEMPTS, said)
        await self._show(pod, room.node)
        for each in going:
            of = request.queue if each.metadata.uid in reclaimed else ""
            if not self._may_write() or not await self._evict(each, pod, of):
                await self._let_go(uid)
                break
        self._asked_s += self._clock() - asked_at

    async def _show(self, pod: Pod, node: str | None) -> None:
        try:
            latest = await self._pod_status.latest(pod)
            await self._pod_status.write(latest, {"status": {"nominatedNodeName": node}})
        except KubeError:  # it changed or went; that is only what others are shown
            return

    async def _evict(self, pod: Pod, preemptor: Pod, guaranteed_to: str) -> bool:
        """`guaranteed_to` is the queue that has its own back, empty if the pod goes for its priority."""
        why = f"evicted to make room for {key(preemptor)}, which has priority {preemptor.spec.priority}"
        if guaranteed_to:
            why = f"evicted to give queue {guaranteed_to} what it is guaranteed, for {key(preemptor)}"
        try:
            await pods.evict(self._client, pod)
        except BlockedByBudget as error:
            self._metrics.preemptions.labels("blocked").inc()
            self._reporter.report_preemption(preemptor, names.NOT_PREEMPTED, f"{key(pod)}: {error}")
            return False
        except KubeError as error:
            self._metrics.preemptions.labels("failed").inc()
            log.warning("pod not evicted", pod=key(pod), why=why, error=str(error))
            return False
        self._metrics.preemptions.labels("evicted").inc()
        self._evicts(pod, why)
        log.warning("pod evicted", pod=key(pod), why=why)
        self._reporter.report_preemption(pod, names.PREEMPTED, why)
        return True


async def _through(steps: Steps[T], breath: Breath) -> T:
    """Return the result of long work; let others run meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if breath.is_due():
            await breath()


MOST_LISTED = 4


def _listed(found: Iterable[str]) -> str:
    listed = sorted(found)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return f"{', '.join(listed[:MOST_LISTED])}{more}"
