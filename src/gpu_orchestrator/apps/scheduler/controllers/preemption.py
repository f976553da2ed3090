"""Evict pods for one or a gang that fits nowhere, and keep their room for it: those of lower priority, or
those of queues that borrow what its queue is guaranteed.

    waits ──▶ nominated: its victims are evicted, and their devices are counted as its own as well
                 │ they have ended                │ it is gone, its node is closed, or a budget stops us
                 ▼                                ▼
              decided again, before all others

Room that pods leave which end soon anyway is kept in the same way, so after a restart no more are evicted.
The victims are the fewest that suffice (`core/node_victims.py`, `core/gang_victims.py`); a gang is evicted
whole. `cycle/preemptors.py` says who may evict, `nominated.py` keeps the room.

To choose victims is long work, and the cluster changes meanwhile: what was chosen is checked again in the
turn in which the room is kept. A pass that has taken long ends, and the next one looks at others first.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import inf

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
from gpu_orchestrator.apps.scheduler.controllers.nominated import Nominated
from gpu_orchestrator.apps.scheduler.controllers.release import EndedPod
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.emptied import Emptied, release
from gpu_orchestrator.apps.scheduler.cycle.preemptible import Budget
from gpu_orchestrator.apps.scheduler.cycle.preemptors import Kind, Preemptor, Preemptors
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Together
from gpu_orchestrator.core.gang_victims import GangVictims
from gpu_orchestrator.core.node_victims import Victims
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.victims import Evictable, NoVictims, Rules, Steps

EVERY_S = 1.0
REST = 4.0
"""How many times as long as it took a pass is followed by a rest."""
MOST_NOMINATED = 64
LONGEST_PASS_S = 0.3
"""After this long no more pods are looked at in one pass: it costs the others a part of their time."""
RETRY_S = 5.0
"""A request for which nobody can be evicted is looked at again after this, behind those never looked at."""
MOST_KNOWN = 10_000

log = structlog.get_logger()


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
        self._client, self._coordinator = client, coordinator
        self._reporter, self._metrics = reporter, metrics
        self._may_write, self._clock, self._rng = may_write, clock, rng
        self._evicts, self._ended_since = evicts, ended_since
        self._nominated = Nominated(coordinator, pod_status, clock, rng)
        self._preemptors = Preemptors(coordinator, self._nominated.__contains__)
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
        await self._nominated.settle()
        began, self._asked_s = self._clock(), 0.0
        while self._may_write() and len(self._nominated) < MOST_NOMINATED:
            in_turn = self._preemptors.in_turn(self._looked, self._clock() - RETRY_S)
            candidates = await Breath(self._clock).result_of(in_turn)
            if not candidates or not await self._look_at(candidates):
                return
            if self._clock() - began - self._asked_s >= LONGEST_PASS_S:
                return

    async def _look_at(self, candidates: list[str]) -> bool:
        """Nominate those for which others end anyway, and the first for which some are evicted: the budgets
        allow less then. Return True if it came to that."""
        breath = Breath(self._clock)
        asked_at = self._clock()
        guards = preemptible.budgets((await self._client.list(DISRUPTION_BUDGETS)).items)
        self._asked_s += self._clock() - asked_at
        allowed = {each.name: each.allowed for each in guards}
        found, began = await breath.result_of(self._evictables(guards)), self._clock()
        emptied = Emptied(self._without_all_that_leaves, found)
        for uid in candidates:
            await breath()
            if not self._may_write() or len(self._nominated) >= MOST_NOMINATED:
                return False
            if (preemptor := self._preemptors.of(uid)) is None:
                continue
            if not emptied.may_hold(preemptor):
                self._give_up(preemptor, NoVictims(0))
                continue
            if any(self._coordinator.engine.is_kept_out(each.key) for each in preemptor.members):
                self._rest(preemptor)  # nobody need go for it, and it must not go before another
                continue
            twin, rules = self._without_leaving(preemptor)
            if rooms := preemptor.rooms(twin, rules, self._rng):
                await self._nominate(preemptor, rooms, ())
                continue
            choosing = preemptor.choosing(twin, found, allowed, rules, self._rng)
            answer = await breath.result_of(choosing)
            if isinstance(answer, NoVictims):
                self._give_up(preemptor, answer)
            elif rooms := self._rooms(preemptor, answer):
                await self._nominate(preemptor, rooms, answer.evictables)
                return True
            if self._clock() - began >= LONGEST_PASS_S:
                return False
        return False

    def _rooms(self, preemptor: Preemptor, chosen: Victims | GangVictims) -> Together:
        """Return the room that these victims leave; none if that has changed while they were chosen."""
        if self._preemptors.of(preemptor.key) != preemptor:
            return ()
        (twin, rules), victims = self._without_leaving(preemptor), chosen.evictables
        if not (all(map(rules.may_go, victims)) and rules.allows(victims)):
            return ()
        for placement in (each for victim in victims for each in victim.placements):
            if placement.node not in twin or twin.held_on(placement.node).get(placement.key) != placement:
                return ()
        return preemptor.rooms_without(chosen, twin, rules, self._rng)

    def _give_up(self, preemptor: Preemptor, answer: NoVictims) -> None:
        self._rest(preemptor)
        if answer.forbidden and (pod := self._coordinator.our_pods.get(preemptor.key)) is not None:
            self._metrics.preemptions.labels("blocked").inc()
            self._reporter.report_preemption(pod, names.NOT_PREEMPTED, answer.message)

    def _rest(self, preemptor: Preemptor) -> None:
        """Look at those like this one again after a while."""
        if len(self._looked) >= MOST_KNOWN:
            del self._looked[next(iter(self._looked))]
        self._looked.pop(preemptor.kind, None)
        self._looked[preemptor.kind] = self._clock()

    def _without_leaving(self, preemptor: Preemptor) -> tuple[Cluster, Rules]:
        """Return the cluster as it is when what ends soon anyway has ended, as far as this one waits for
        that, and whom it may evict then."""
        twin, now = self._coordinator.engine.unkept(preemptor.key), datetime.now(UTC)
        ours = self._coordinator.our_pods
        shown = (ours[each.key].status.nominated_node_name for each in preemptor.members if each.key in ours)
        rooms = {each for each in shown if each} | self._nominated.nodes_left(preemptor)
        leaving = [
            (pod.metadata.uid, pod.spec.node_name)
            for pod in ours.values()
            if pod.metadata.deletion_timestamp
            and pod.spec.node_name
            and preemptible.ends_soon(pod, now, has_room=self._gives_room(pod, preemptor, rooms))
        ]
        ended = self._ended_since(self._clock() - preemptible.SOON_S)
        ends = (*leaving, *((each.uid, each.node) for each in ended))
        going = {each.key: each for one, node in ends for each in self._held(one, node)}
        for placement in going.values():
            twin.release(placement)
        return twin, self._preemptors.rules(preemptor, {*going, *self._nominated.going()})

    def _gives_room(self, pod: Pod, preemptor: Preemptor, promised: set[str]) -> bool:
        """Return True if the pod may have been evicted for one that was promised these nodes: it has a part
        of the room there or, on any node, of what the queues above both may use."""
        if not promised or pod.spec.node_name in promised:
            return bool(promised)
        queues = self._coordinator.engine.queues
        held = self._held(pod.metadata.uid, pod.spec.node_name)
        theirs = (queues.node(queues.queue_of(each.key)) for each in held)
        mine = queues.node(preemptor.queue)
        return mine is not None and any(each and not set(each.path).isdisjoint(mine.path) for each in theirs)

    def _without_all_that_leaves(self) -> Cluster:
        """Return a copy of the cluster without what is deleted or has ended, and without places kept."""
        engine = self._coordinator.engine
        twin, ours = engine.cluster.copy(), self._coordinator.our_pods.values()
        leaving = [
            (each.metadata.uid, each.spec.node_name) for each in ours if each.metadata.deletion_timestamp
        ]
        ended = [(each.uid, each.node) for each in self._ended_since(-inf)]
        for uid, node in (*leaving, *ended):
            release(self._held(uid, node), twin)
        for kept in engine.kept():
            release(kept.rooms, twin)
        return twin

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

    async def _nominate(self, preemptor: Preemptor, rooms: Together, victims: tuple[Evictable, ...]) -> None:
        """Keep the room, and evict who is in it. If a budget forbids one after all, or the preemptor changes
        meanwhile, nobody else goes."""
        ours, queues = self._coordinator.our_pods, self._coordinator.engine.queues
        held = {placement.key for each in victims for placement in each.placements}
        going = [ours[each] for each in sorted(held) if each in ours]
        reclaimed = {
            each for each in held if preemptor.queue and queues.queue_of(each) not in ("", preemptor.queue)
        }
        self._nominated.keep(preemptor, rooms, tuple(held))
        asked_at, on = self._clock(), _listed({each.node for each in rooms})
        name = self._preemptors.name(preemptor)
        log.info("pod nominated", pod=name, node=on, victims=[key(each) for each in going])
        if going:
            of = f"to have what queue {preemptor.queue} is guaranteed" if reclaimed else "of lower priority"
            said = f"evicts {_listed(map(key, going))}, {of}, and waits for their end on {on}"
            self._reporter.report_preemption(ours[preemptor.key], names.PREEMPTS, said)
        await self._nominated.show(rooms)
        for each in going:
            why = f"evicted to make room for {name}, which has priority {preemptor.priority}"
            if each.metadata.uid in reclaimed:
                why = f"evicted to give queue {preemptor.queue} what it is guaranteed, for {name}"
            is_of_use = self._may_write() and self._nominated.still_waits(preemptor.key)
            if not is_of_use or not await self._evict(each, ours.get(preemptor.key), why):
                await self._nominated.let_go(preemptor.key)
                break
        self._asked_s += self._clock() - asked_at

    async def _evict(self, pod: Pod, preemptor: Pod | None, why: str) -> bool:
        try:
            await pods.evict(self._client, pod)
        except BlockedByBudget as error:
            self._metrics.preemptions.labels("blocked").inc()
            if preemptor is not None:
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


MOST_LISTED = 4


def _listed(found: Iterable[str]) -> str:
    listed = sorted(found)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return f"{', '.join(listed[:MOST_LISTED])}{more}"
