"""Decide about a request that names a model: on a loaded copy, on a new one, or wait for one that is busy.

    an idle copy has room                          ──▶ there
    none fits, and none can be loaded              ──▶ refused, as any request
    a busy copy will be free before a new one is   ──▶ wait for it
    a new one would displace a copy that later
      requests want (few, and this is not urgent)  ──▶ one of those first
    else                                           ──▶ load a new one, where that costs least

Called by the engine, which performs what is returned.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import isinf
from typing import NamedTuple

import numpy as np

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.copies import Copy, cheapest_first, is_young, victims
from gpu_orchestrator.core.decide import decide, decide_among, fits
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.policy import Choice, Policy, Rng
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.standing import current
from gpu_orchestrator.core.topology import Topology, first_set
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.models import Models
from gpu_orchestrator.engine.queue import Waiting

MOST_TRIED = 32
"""Nodes that are looked at closely for one decision."""
LEAST_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Go:
    """Place this request, which need not be the one that was asked about; the copies are `evicted` for it."""

    waiting: Waiting
    placement: Placement
    evicted: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Stay:
    """Park the request; judge it again at `until` if nothing happens before, or once `count` requests wait
    for its model."""

    refusal: Refusal
    until: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Exactly:
    """The allocator that gives these devices, by id, before all others."""

    ids: tuple[int, ...]

    def __call__(self, choice: Choice) -> tuple[int, ...]:
        position = choice.topology.position
        known = (position[each] for each in self.ids if each in position)
        wanted = [at for at in known if choice.free >> at & 1]
        order = (*wanted, *(at for at in choice.positions if at not in wanted))
        return first_set(choice.topology, order, choice.gpus, choice.floor_gbps) or order[: choice.gpus]


@dataclass(frozen=True, slots=True)
class _Load:
    """Where a new copy would be loaded, what goes for it, and how long all of that takes."""

    placement: Placement
    cost_s: float
    evicted: tuple[Copy, ...] = ()
    young_until: float = 0.0


class ModelChoice:
    def __init__(self, models: Models, fair_share: FairShare, cluster: Cluster, rng: Rng) -> None:
        self._models, self._fair_share, self._cluster, self._rng = models, fair_share, cluster, rng

    def choose(self, waiting: Waiting, now: float) -> Go | Stay:
        models, rules, model = self._models, self._models.rules, waiting.request.shape.model
        if (placement := self._warm(waiting)) is not None:
            return Go(waiting, placement)
        load = self._load(waiting, now)
        if isinstance(load, Refusal):
            return Stay(load)
        if now >= rules.urgent_at(waiting.since):
            return Go(waiting, load.placement, load.evicted)
        if load.young_until > now:
            return Stay(_waits("keep a model that was loaded a moment ago", self._cluster), load.young_until)
        waits_s = models.waits_s(model, now, models.line.count(model))
        if waits_s and waits_s[-1] <= load.cost_s:
            return self._wait(waiting, waits_s, load, now)
        if (rival := self._rival(waiting, load)) is not None:
            waiting.passed += 1
            return rival
        if not waits_s or waits_s[0] > load.cost_s:
            return Go(waiting, load.placement, load.evicted)
        return self._later(waiting, waits_s, load) or self._wait(waiting, waits_s, load, now)

    def _wait(self, waiting: Waiting, waits_s: list[float], load: _Load, now: float) -> Stay:
        """Wait for a busy copy, until that takes longer than loading another."""
        gap = max((b - a for a, b in pairwise(waits_s)), default=0.0)
        more = int((load.cost_s - waits_s[-1]) / gap) + 1 if gap > 0 else None
        urgent_at = self._models.rules.urgent_at(waiting.since)
        until = min(now + max(waits_s[0], LEAST_WAIT_S), urgent_at)
        count = len(waits_s) + more if more is not None else None
        return Stay(_waits("are busy with the model, or would load it later", self._cluster), until, count)

    def _later(self, waiting: Waiting, waits_s: list[float], load: _Load) -> Go | None:
        """Return a later request of the same kind, for which the busy copies come too late; those before it
        are served by them sooner than a new copy could."""
        at = next((at for at, wait_s in enumerate(waits_s) if wait_s > load.cost_s), None)
        if at is None:
            return None
        line = self._models.line.of(waiting.request.shape.model)
        _, other = line[min(at, self._models.rules.most_passed, len(line) - 1)]
        if _kind(other) != _kind(waiting) or other.rests_until is not None:
            return None
        return Go(other, replace(load.placement, key=other.request.key), load.evicted)

    def ahead(self, waiting: Waiting) -> Placement | None:
        """Return where the model of a waiting request could be loaded before its turn: where it lacks nothing
        but what a running request gives back (such as a slot), and nothing must go."""
        if waiting.request.shape.gpus and waiting.request.shape.exclusive:
            return None  # nobody knows what it takes
        asked = replace(waiting.request, shape=replace(waiting.request.shape, resources=()))
        answer = decide(asked, self._cluster, waiting.policy, self._rng)
        if isinstance(answer, Refusal):
            return None
        found = self.spare(replace(waiting, request=asked), answer)
        may = found and self._models.may_load(asked.shape.model, found.node, set(found.devices))
        return found if may else None

    # --- on a loaded copy ----------------------------------------------------------------------------------

    def _warm(self, waiting: Waiting) -> Placement | None:
        """Return a placement on an idle copy of its model, if one has room."""
        model, tried = waiting.request.shape.model, 0
        for node in sorted(self._models.nodes_of(model)):
            for copy in self._models.idle(node):
                if copy.model == model and tried < MOST_TRIED:
                    tried += 1
                    if (placement := self._on_copy(waiting, node, copy)) is not None:
                        return placement
        return None

    def _on_copy(self, waiting: Waiting, node: str, copy: Copy) -> Placement | None:
        """Return the placement of a request on this copy. A pin that was taken off for it stays off only if
        there is one."""
        if node not in self._cluster or len(copy.devices) != waiting.request.shape.gpus:
            return None
        self._models.unpin(node, (copy.model, copy.devices))
        ids = tuple(each for each in copy.devices if isinstance(each, int))
        placement = self._exactly(waiting, node, ids)
        if placement is None or set(placement.devices) != set(ids):
            self._models.settle_pins(node)
            return None
        return replace(placement, devices=ids)

    def _exactly(self, waiting: Waiting, node: str, ids: tuple[int, ...]) -> Placement | None:
        shape, cluster, row = waiting.request.shape, self._cluster, self._cluster.row(node)
        free = Kind(shape, cluster.inventory).free(cluster, np.array([row]))[0]
        position = _layout(cluster, row).position
        if any(each not in position or not free[position[each]] for each in ids):
            return None
        if not fits(shape, cluster, node):
            return None
        return self._among([row], waiting, Exactly(ids))

    def _among(self, rows: list[int], waiting: Waiting, allocate: Exactly | None = None) -> Placement | None:
        policy = Policy(waiting.policy.strategy, allocate) if allocate else waiting.policy
        found = decide_among(rows, waiting.request, self._cluster, policy, self._rng)
        return found if isinstance(found, Placement) else None

    # --- on a new copy -------------------------------------------------------------------------------------

    def _load(self, waiting: Waiting, now: float) -> _Load | Refusal:
        """Return where loading the model costs least, or why it can be loaded nowhere."""
        request = waiting.request
        answer = decide(request, self._cluster, waiting.policy, self._rng)
        if isinstance(answer, Refusal):
            return answer
        load_s = self._models.estimates.load_s(request.shape.model)
        spared = self.spare(waiting, answer)
        model, models = request.shape.model, self._models
        if spared is not None and models.may_load(model, spared.node, set(spared.devices)):
            return _Load(spared, load_s)
        plans = [self._plan(waiting, node, load_s, now) for node in self._best_nodes(waiting)]
        found = [each for each in plans if each is not None]
        if found:
            return min(found, key=lambda each: each.cost_s)
        if models.is_busy_on(model, answer.node, set(answer.devices)):
            return _waits("are busy with the model", self._cluster)
        return _Load(answer, load_s)

    def spare(self, waiting: Waiting, answer: Placement) -> Placement | None:
        """Return this placement, or another one, for which no copy of a model must go; None if there is
        none."""
        if not self._models.on(answer.node) or not answer.devices:
            return answer
        standing = current(waiting.request.shape, self._cluster, waiting.policy)
        row_of = self._cluster.inventory.row_of
        used = [row_of[node] for node in self._models.nodes_with_copies() if node in row_of]
        empty = np.array(standing.scores)
        empty[used] = -np.inf
        if not isinf(best := empty.max(initial=-np.inf)):
            return self._among(where(empty == best).tolist()[:1], waiting)
        for node in self._best_nodes(waiting):
            chosen = self._cheapest(waiting.request, node, 0.0)
            if chosen is not None and not any(each.evicted for each in chosen):
                return self._among([row_of[node]], waiting, Exactly(tuple(each.device for each in chosen)))
        return None

    def _best_nodes(self, waiting: Waiting) -> list[str]:
        """Return the nodes that fit, the best ones by its policy first; a few of them."""
        scores = current(waiting.request.shape, self._cluster, waiting.policy).scores
        rows = where(np.isfinite(scores))
        best = rows[np.argsort(-scores[rows], kind="stable")][:MOST_TRIED]
        return [node.name for row in best.tolist() if (node := self._cluster.inventory.nodes[row])]

    def _plan(self, waiting: Waiting, node: str, load_s: float, now: float) -> _Load | None:
        chosen = self._cheapest(waiting.request, node, now)
        if chosen is None:
            return None
        ids = tuple(each.device for each in chosen)
        if self._models.is_busy_on(waiting.request.shape.model, node, set(ids)):
            return None
        placement = self._among([self._cluster.row(node)], waiting, Exactly(ids))
        if placement is None:
            return None
        models, gone = self._models, {copy for each in chosen for copy in each.evicted}
        here = models.on(node)
        if models.is_full(node, len(gone)):
            others = [each for each in cheapest_first(here, now) if each not in gone]
            gone.update(others[: len(here) - len(gone) - models.most_copies(node) + 1])
        cost_s = load_s + sum(models.reload_s(copy, now) for copy in gone)
        least = models.rules.min_loaded_s
        young = [copy.loaded_at + least for copy in gone if is_young(copy, now, least)]
        return _Load(placement, cost_s, tuple(gone), max(young, default=0.0))

    def _cheapest(self, request: Request, node: str, now: float) -> "list[_Taken] | None":
        """Return the devices of a node on which the request displaces least; None if there are too few."""
        cluster, models, row = self._cluster, self._models, self._cluster.row(node)
        free = Kind(request.shape, cluster.inventory).free(cluster, np.array([row]))[0]
        found: list[_Taken] = []
        model, gpus = request.shape.model, request.shape.gpus
        for device, at in _layout(cluster, row).position.items():
            if free[at] and not (gpus == 1 and models.is_busy_on(model, node, {device})):
                there = [copy for copy in models.idle(node) if device in copy.devices]
                free_mib = int(cluster.usage.free_mib[row, at])
                gone = self._gone(request, there, device, free_mib, now)
                if gone is not None:
                    found.append(_Taken(sum(models.reload_s(copy, now) for copy in gone), device, gone))
        prefer = request.shape.prefer_ids
        found.sort(key=lambda each: (bool(prefer) and each.device not in prefer, each.cost_s, each.device))
        return found[: request.shape.gpus] if len(found) >= request.shape.gpus else None

    def _gone(
        self, request: Request, there: list[Copy], device: int, free_mib: int, now: float
    ) -> tuple[Copy, ...] | None:
        """Return the copies that a request displaces on one device; None if it has no room even then."""
        if request.shape.exclusive:
            return tuple(there)
        held = sum(copy.mib for copy in there if not copy.pinned)
        short = request.shape.memory_mib - (free_mib - held)
        return victims(there, {device: short}, now, self._models.rules.min_loaded_s)

    # --- others first --------------------------------------------------------------------------------------

    def _rival(self, waiting: Waiting, load: _Load) -> Go | None:
        """Return the first of the later requests whose copy this request would displace, if it may pass."""
        models, rules = self._models, self._models.rules
        if waiting.passed >= rules.most_passed:
            return None
        node, lane = load.placement.node, waiting.lane
        rivals: list[tuple[int, Waiting, Copy]] = []
        for copy in models.idle(node):
            if copy.model != waiting.request.shape.model and (copy in load.evicted or self._takes_last(load)):
                for _, other in models.line.first_in_lane(copy.model, lane):
                    if (passes := models.line.passes(other)) > rules.most_passed:
                        break
                    if other.rests_until is None and not self._fair_share.is_full(other.flow):
                        rivals.append((passes, other, copy))
                        break
        for _, other, copy in sorted(rivals, key=lambda each: each[0]):
            if (placement := self._on_copy(other, node, copy)) is not None:
                return Go(other, placement)
        return None

    def _takes_last(self, load: _Load) -> bool:
        """Return True if the placement leaves nothing of one of its resources, such as the worker's slots."""
        inventory, row = self._cluster.inventory, self._cluster.row(load.placement.node)
        free = self._cluster.usage.free[row]
        return any(free[inventory.kind(name)] < 2 * amount for name, amount in load.placement.resources)


class _Taken(NamedTuple):
    """One device, what its loss costs other models, and the copies that go."""

    cost_s: float
    device: int
    evicted: tuple[Copy, ...]


def _kind(waiting: Waiting) -> tuple[Shape, Policy, str, int]:
    """Return what makes requests interchangeable, but for their order."""
    return waiting.request.shape, waiting.policy, waiting.flow, waiting.lane


def _layout(cluster: Cluster, row: int) -> Topology:
    found: Topology = cluster.inventory.names.values[cluster.inventory.topology[row]]
    return found


def _waits(why: str, cluster: Cluster) -> Refusal:
    return Refusal(len(cluster), ((why, len(cluster)),))
