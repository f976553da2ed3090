"""Evict pods of lower priority for a pod that fits nowhere, and keep their room for it.

    waits ──▶ nominated: its victims are evicted, and their devices are counted as its own as well
                 │ they have ended                │ it is gone, or a budget stops us after all
                 ▼                                ▼
              decided again, first by its priority

Room that pods leave which end anyway is kept in the same way, so after a restart no more are evicted. The
victims are the fewest that suffice (`core/victims.py`). A gang is evicted whole; its members preempt nothing.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import BlockedByBudget, Conflict, KubeError, NotFound
from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import DISRUPTION_BUDGETS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.preemptible import NEVER, Budget
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, decide_among, fits
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.victims import Evictable, NoVictims, choose
from gpu_orchestrator.engine.events import PlacementObserved, RequestRemoved, RoomReady

EVERY_S = 1.0
LONGEST_S = 900.0
"""How long room is kept for a pod whose victims do not end."""
MOST_NOMINATED = 64
MOST_LOOKED_AT = 16
"""Waiting pods that are looked at in one pass, those of the highest priority."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Nomination:
    request: Request
    room: Placement
    since: float
    victims: tuple[str, ...] = ()


class PreemptionController:
    """`may_write` returns whether we lead."""

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
    ) -> None:
        self._client, self._coordinator, self._pod_status = client, coordinator, pod_status
        self._reporter, self._metrics = reporter, metrics
        self._may_write, self._clock, self._rng = may_write, clock, rng
        self._nominated: dict[str, Nomination] = {}
        self._hopeless: dict[tuple[Shape, int], int] = {}
        """At which change of the cluster no victims were found, by shape and priority."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.check()
            except Exception:  # the edge of one pass; the next one looks again
                self._metrics.error("preemption")
                log.exception("preemption not checked")

    async def check(self) -> None:
        """Let nominated pods be decided whose room is free, and nominate one more."""
        for uid, nomination in list(self._nominated.items()):
            self._settle(uid, nomination)
        if self._may_write() and len(self._nominated) < MOST_NOMINATED:
            for uid in self._candidates():
                if await self._preempt(uid):
                    return

    def _settle(self, uid: str, nomination: Nomination) -> None:
        engine = self._coordinator.engine
        waits = engine.waiting(uid) == nomination.request and nomination.room.node in engine.cluster
        if waits and self._clock() - nomination.since < LONGEST_S:
            twin = engine.cluster.copy()
            twin.release(nomination.room)
            if not fits(nomination.request.shape, twin, nomination.room.node):
                return
            del self._nominated[uid]
            self._coordinator.feed(RoomReady(nomination.room.key, uid))
        else:
            self._let_go(uid)

    def _let_go(self, uid: str) -> None:
        nomination = self._nominated.pop(uid)
        self._coordinator.feed(RequestRemoved(nomination.room.key))

    def _candidates(self) -> list[str]:
        """Return pods that may preempt, the highest priority first."""
        engine, ours = self._coordinator.engine, self._coordinator.our_pods
        if not engine.counts()["parked"]:
            return []
        bound = [pod.spec.priority for pod in ours.values() if pod.spec.node_name]
        lowest = min(bound, default=None)
        if lowest is None:
            return []
        mark = engine.cluster.changed.mark
        waiting = [
            (-pod.spec.priority, pod.metadata.creation_timestamp, uid)
            for uid, pod in ours.items()
            if pod.spec.priority > lowest and self._may_preempt(uid, pod, mark)
        ]
        return [uid for *_, uid in heapq.nsmallest(MOST_LOOKED_AT, waiting)]

    def _may_preempt(self, uid: str, pod: Pod, mark: int) -> bool:
        if pod.spec.node_name or pod.spec.preemption_policy == NEVER or uid in self._nominated:
            return False
        request = self._coordinator.engine.waiting(uid)
        if request is None or request.gang is not None:
            return False
        return self._hopeless.get((request.shape, request.priority)) != mark

    async def _preempt(self, uid: str) -> bool:
        """Nominate this pod if evicting others helps; return False if it does not."""
        engine = self._coordinator.engine
        found = engine.waiting_under(uid)
        if found is None:
            return False
        request, policy = found
        twin = self._without_leaving()
        if isinstance(room := decide(request, twin, policy, self._rng), Placement):
            await self._nominate(uid, request, room, ())
            return True
        guards = preemptible.budgets((await self._client.list(DISRUPTION_BUDGETS)).items)
        if engine.waiting(uid) != request:
            return False
        answer = choose(request, twin, policy, self._evictables(guards), {g.name: g.allowed for g in guards})
        if isinstance(answer, NoVictims):
            self._give_up(uid, request, answer)
            return False
        for each in answer.evictables:
            for placement in each.placements:
                twin.release(placement)
        room = decide_among([twin.row(answer.node)], request, twin, policy, self._rng)
        if not isinstance(room, Placement):
            return False
        await self._nominate(uid, request, room, answer.evictables)
        return True

    def _give_up(self, uid: str, request: Request, answer: NoVictims) -> None:
        if len(self._hopeless) > 10 * MOST_NOMINATED:
            self._hopeless.clear()
        self._hopeless[request.shape, request.priority] = self._coordinator.engine.cluster.changed.mark
        if answer.forbidden and (pod := self._coordinator.our_pods.get(uid)) is not None:
            self._metrics.preemptions.labels("blocked").inc()
            self._reporter.report_preemption(pod, names.NOT_PREEMPTED, answer.message)

    def _without_leaving(self) -> Cluster:
        """Return the cluster as it is when the pods that are being deleted have ended."""
        twin = self._coordinator.engine.cluster.copy()
        for pod in self._coordinator.our_pods.values():
            if pod.spec.node_name and pod.metadata.deletion_timestamp:
                for placement in self._held(pod):
                    twin.release(placement)
        return twin

    def _evictables(self, guards: list[Budget]) -> list[Evictable]:
        ours, stores = self._coordinator.our_pods.values(), self._coordinator.stores
        return preemptible.evictables(
            (pod for pod in ours if pod.spec.node_name),
            self._held,
            stores.claim_spec,
            guards,
            datetime.now(UTC),
        )

    def _held(self, pod: Pod) -> tuple[Placement, ...]:
        """Return what counts of a bound pod, by itself or by its leases."""
        cluster, uid, node = self._coordinator.engine.cluster, pod.metadata.uid, pod.spec.node_name
        if node not in cluster:
            return ()
        keys = {uid, *(hold.placement.key for hold in self._coordinator.lease_index.holds(uid))}
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
        self._nominated[uid] = Nomination(request, room, self._clock(), tuple(p.metadata.uid for p in going))
        self._coordinator.feed(PlacementObserved(room))
        pod = ours[uid]
        log.info("pod nominated", pod=key(pod), node=room.node, victims=[key(each) for each in going])
        if going:
            listed = _listed(key(each) for each in going)
            self._reporter.report_preemption(
                pod,
                names.PREEMPTS,
                f"evicts {listed}, of lower priority, and waits for their end on {room.node}",
            )
        await self._show(pod, room.node)
        for each in going:
            if not await self._evict(each, pod):
                self._let_go(uid)
                return

    async def _show(self, pod: Pod, node: str) -> None:
        try:
            latest = await self._pod_status.latest(pod)
            await self._pod_status.write(latest, {"status": {"nominatedNodeName": node}})
        except (Conflict, NotFound):  # it changed or went; that is only what others are shown
            return

    async def _evict(self, pod: Pod, preemptor: Pod) -> bool:
        why = f"evicted to make room for {key(preemptor)}, which has priority {preemptor.spec.priority}"
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
        log.warning("pod evicted", pod=key(pod), why=why)
        self._reporter.report_preemption(pod, names.PREEMPTED, why)
        return True


MOST_LISTED = 4


def _listed(found: Iterable[str]) -> str:
    listed = sorted(found)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return f"{', '.join(listed[:MOST_LISTED])}{more}"
