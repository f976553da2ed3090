"""Whom a request or a gang in a queue with quota may evict: of its own queue and of those in none by
priority, and of queues that borrow as far as its queue, or one above it, uses less than it is guaranteed.

Rules for `core/victims.py`. No queue is brought below what it is guaranteed itself, or it would have that
back in its turn, and so on forever.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpu_orchestrator.core.queues import Amounts, QueueNode, Queues, milli_of
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.victims import Cost, Evictable

Freed = dict[QueueNode, dict[str, int]]
"""What is let go in a queue and all below it, by model."""


class _Wish(NamedTuple):
    """How much a member asks for, and of which models."""

    milli: int
    models: frozenset[str]


class _Held(NamedTuple):
    """What an evictable has in one queue."""

    queue: QueueNode
    amounts: Amounts


class ByQueues:
    """The rules for one request, or for members of a gang that start together; all are in one queue.
    `leaving` are the keys of placements that end soon anyway, `preempts` says whether they may evict those of
    lower priority that are in no queue."""

    def __init__(
        self,
        members: Sequence[Request],
        queues: Queues,
        known: Callable[[], Iterable[str]],
        *,
        leaving: Iterable[str] = (),
        preempts: bool = True,
    ) -> None:
        self._queues, self._preempts = queues, preempts
        self._priority = min(each.priority for each in members)
        self._known = frozenset(known())
        self._wishes = [_Wish(milli_of(each.shape), self._models_of(each)) for each in members]
        self._milli = sum(each.milli for each in self._wishes)
        self._queue = members[0].queue
        self._node = queues.node(self._queue)
        self._leaving = _freed(self._holds(leaving))

    @property
    def may_evict(self) -> bool:
        """Return False if the request may evict no pod at all."""
        terms = self._node.terms if self._node else None
        if self._node is None or terms is None or self._node.problem:
            return False
        if self._preempts or terms.within != "never":
            return True
        return terms.reclaim != "never" and any(self._is_due_in_all(each) for each in self._node.path)

    def may_go(self, evictable: Evictable) -> bool:
        """Return True if the terms of both queues allow to evict it."""
        held = self._held_by(evictable)
        if not held:
            return self._preempts and evictable.priority < self._priority
        return all(self._may_take(each, evictable.priority) for each in held)

    def allows(self, chosen: Iterable[Evictable]) -> bool:
        """Return True if the queues of these would keep what they are guaranteed."""
        held = [each for evictable in chosen for each in self._held_by(evictable)]
        freed = _freed(held)
        for each in held:
            for node in self._apart(each.queue):
                if not _still_borrows(node, freed[node], self._leaving.get(node, {})):
                    return False
        return True

    def has_room(self, gone: Iterable[Evictable], models: frozenset[str]) -> bool:
        return self._room(gone, [each._replace(models=each.models & models) for each in self._wishes])[0]

    def narrowed(self, gone: Iterable[Evictable], members: Sequence[Request]) -> Sequence[Request] | None:
        has_room, full = self._room(gone, self._wishes)
        if not has_room or not full:
            return members if has_room else None
        return [_without(full, each, self._models_of(each)) for each in members]

    def _room(self, gone: Iterable[Evictable], wishes: Sequence[_Wish]) -> tuple[bool, frozenset[str]]:
        """Return whether all wishes may be granted together without these, and the models that have no room
        for all that could use them."""
        if self._node is None or self._node.problem:
            return False, frozenset()
        freed = _freed([each for evictable in gone for each in self._held_by(evictable)], self._leaving)
        path = self._node.path
        if any(each.total - _sum(freed.get(each)) + self._milli > each.cap.total for each in path):
            return False, frozenset()
        if not self._milli or not any(each.cap.has_models for each in path):
            return True, frozenset()
        wanted = Counter[str]()
        for wish in wishes:
            wanted.update(dict.fromkeys(wish.models, wish.milli))
        full = frozenset(
            model
            for model, milli in wanted.items()
            if any(
                each.used.get(model, 0) - freed.get(each, {}).get(model, 0) + milli > each.cap.of(model)
                for each in path
            )
        )
        return all(wish.models - full for wish in wishes if wish.milli), full

    def cost(self, chosen: Iterable[Evictable]) -> Cost:
        """Of equally few, those of low priority go first, and then those that lose least."""
        all_of = tuple(chosen)
        highest = max((each.priority for each in all_of), default=0)
        return sum(each.size for each in all_of), float(highest), sum(each.lost_gpu_s for each in all_of)

    def _models_of(self, member: Request) -> frozenset[str]:
        return frozenset(member.shape.models) or self._known

    def _may_take(self, held: _Held, priority: int) -> bool:
        mine = self._node
        if mine is None or mine.terms is None:
            return False
        is_lower = priority < self._priority
        if held.queue is mine:
            return mine.terms.within == "lower" and is_lower
        if mine.terms.reclaim == "never" or (mine.terms.reclaim == "lower" and not is_lower):
            return False
        due = self._due(held.queue)
        return due is not None and all(self._is_due(due, model) for model, _ in held.amounts)

    def _due(self, other: QueueNode) -> QueueNode | None:
        """Return the queue, the request's own or one above it, that stands beside the other one; None if the
        other one is below the request's own."""
        mine = self._node.path if self._node else ()
        beside = [each for each in mine if each not in other.path]
        return beside[-1] if beside else None

    def _is_due_in_all(self, node: QueueNode) -> bool:
        return node.total - _sum(self._leaving.get(node)) + self._milli <= node.guaranteed.total

    def _is_due(self, node: QueueNode, model: str) -> bool:
        """Return True if with the request it uses no more than it is guaranteed."""
        gone = self._leaving.get(node, {})
        wanted = sum(each.milli for each in self._wishes if model in each.models) or self._milli
        used = node.used.get(model, 0) - gone.get(model, 0) + wanted
        return self._is_due_in_all(node) and used <= node.guaranteed.of(model)

    def _apart(self, other: QueueNode) -> list[QueueNode]:
        """Return the other queue and those above it, without those that are above the request's, too."""
        mine = self._node.path if self._node else ()
        return [] if other in mine else [each for each in other.path if each not in mine]

    def _held_by(self, evictable: Evictable) -> list[_Held]:
        return self._holds(each.key for each in evictable.placements)

    def _holds(self, keys: Iterable[str]) -> list[_Held]:
        found = (self._queues.held(key) for key in keys)
        return [_Held(node, amounts) for name, amounts in found if name and (node := self._queues.node(name))]


def _without(full: frozenset[str], member: Request, models: frozenset[str]) -> Request:
    """Return the member as it may have models that are not full."""
    if not milli_of(member.shape) or models.isdisjoint(full):
        return member
    return replace(member, shape=replace(member.shape, models=tuple(sorted(models - full))))


def _freed(held: Iterable[_Held], more: Mapping[QueueNode, Mapping[str, int]] | None = None) -> Freed:
    found: Freed = {node: dict(amounts) for node, amounts in (more or {}).items()}
    for queue, amounts in held:
        for node in queue.path:
            by_model = found.setdefault(node, {})
            for model, milli in amounts:
                by_model[model] = by_model.get(model, 0) + milli
    return found


def _sum(amounts: Mapping[str, int] | None) -> int:
    return sum(amounts.values()) if amounts else 0


def _still_borrows(node: QueueNode, freed: Mapping[str, int], leaving: Mapping[str, int]) -> bool:
    """Return True if without these the queue has at least what it is guaranteed: of all models together, or
    of each model that it loses."""
    guaranteed = node.guaranteed
    if node.total - _sum(freed) - _sum(leaving) >= guaranteed.total:
        return True
    return all(
        node.used.get(model, 0) - milli - leaving.get(model, 0) >= guaranteed.of(model)
        for model, milli in freed.items()
    )
