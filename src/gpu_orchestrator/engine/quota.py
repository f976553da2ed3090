"""What is placed and released, as the queues count it, and what may still start. Kept by the engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.queue_terms import ALL, QueueTerms
from gpu_orchestrator.core.queue_usage import QueueUsage, usages
from gpu_orchestrator.core.queues import Amounts, At, Full, Queues, Without, amounts_of, milli_of
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.turns import Turn

Verdict = Full | tuple[str, ...] | None
"""Why a request may not start, on which models it may, or None if its queue has room on all."""


def nobody() -> None:
    return None


class Quota:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.queues = Queues()
        self.passes: Callable[[Request], Iterable[str]] | None = None
        """While quota is kept for some requests, returns those of them that this one goes before."""
        self.latest: Callable[[], Turn | None] = nobody
        """Returns the turn of the last of those for whom quota is kept; None if it is for nobody."""
        self._models: tuple[str, ...] = ()
        self._models_at = -1

    def update(self, terms: QueueTerms) -> bool:
        """Set what is declared of a queue; return False if that is known."""
        return self.queues.update(terms)

    def remove(self, name: str) -> bool:
        """Forget a queue; return False if it was not known."""
        return self.queues.remove(name)

    # --- what may start ----------------------------------------------------------------------------------

    def judge(self, request: Request) -> Verdict:
        """Return whether a request that is in a queue may start."""
        asked = request.queue, milli_of(request.shape), request.shape.models, self.models
        if self.passes is None:
            return self.queues.judge(*asked)
        with self._passing(request):
            return self.queues.judge(*asked)

    def _passing(self, request: Request) -> Without:
        return self.queues.without(() if self.passes is None else self.passes(request))

    def narrowed(self, request: Request) -> Request | None:
        """Return a request as its queue has room for it, perhaps on some models only; None if it has none."""
        verdict = self.judge(request) if request.queue else None
        if isinstance(verdict, tuple):
            return replace(request, shape=replace(request.shape, models=verdict))
        return None if isinstance(verdict, Full) else request

    def has_room(self, queue: str, amounts: Amounts) -> bool:
        """Return True if all of this may be used together."""
        total = sum(milli for _, milli in amounts)
        node = self.queues.node(queue)
        return node is not None and all(
            self.queues.room((each.name, model)) >= milli
            for each in node.path
            for model, milli in ((ALL, total), *amounts)
        )

    def full_at(self, request: Request) -> tuple[At, ...]:
        """Return the budgets that have no room for a request that is in a queue."""
        with self._passing(request):
            return self.queues.full_at(
                request.queue, milli_of(request.shape), request.shape.models, self.models
            )

    def judge_together(self, members: Sequence[Request]) -> Full | list[tuple[str, ...] | None]:
        """Return whether requests of one queue may all start at once."""
        wishes = [(milli_of(each.shape), each.shape.models) for each in members]
        with self._passing(members[-1]):
            return self.queues.judge_together(members[0].queue, wishes, self.models)

    def models(self) -> tuple[str, ...]:
        """Return the models of GPUs that there are."""
        cluster = self._cache.cluster
        if self._models_at != cluster.observed.mark:
            self._models_at = cluster.observed.mark
            inventory = cluster.inventory
            rows = where(inventory.alive[: inventory.size])
            numbers = np.unique(inventory.model[rows])
            self._models = tuple(sorted(name for each in numbers if (name := inventory.names.values[each])))
        return self._models

    # --- what is used ------------------------------------------------------------------------------------

    def take(self, key: str, queue: str, placement: Placement) -> None:
        """Count a placement in its queue; it replaces what the key held before."""
        self.queues.take(key, queue, self._amounts(placement) if queue else ())

    def let_go(self, key: str) -> bool:
        """Return True if the key held something in a queue."""
        return bool(self.queues.let_go(key))

    def node_changed(self, before: Node | None, node: Node) -> None:
        """Count again what is held on a node that is new, or whose devices are of other models now. What
        holds a device that is not reported any more counts as before."""
        models = {each.id: each.model for each in node.devices}
        was = {each.id: each.model for each in before.devices} if before else {}
        if before is not None and all(was.get(each) == model for each, model in models.items()):
            return
        for placement in self._cache.on_node(node.name):
            is_known = before is None or all(each in models for each in placement.devices)
            if is_known and (queue := self.queues.queue_of(placement.key)):
                self.take(placement.key, queue, placement)
        self.queues.has_changed = True

    def usages(self, pending: Mapping[str, int]) -> dict[str, QueueUsage]:
        """Return the usage of every queue; `pending` counts the waiting requests of each."""
        cluster = self._cache.cluster
        free = sum(cluster.free_gpus(node.name) for node in cluster) * WHOLE
        return usages(self.queues, pending, free)

    def amounts(self, placements: Iterable[Placement]) -> Amounts:
        """Return what these count together."""
        found: dict[str, int] = {}
        for model, milli in (amount for each in placements for amount in self._amounts(each)):
            found[model] = found.get(model, 0) + milli
        return tuple(found.items())

    def _amounts(self, placement: Placement) -> Amounts:
        cluster = self._cache.cluster
        devices = cluster.node(placement.node).devices if placement.node in cluster else ()
        known = {each.id: each for each in devices}
        return amounts_of(placement, known, unnamed=devices[0].model if devices else "")


def refused(full: Full, nodes: int) -> Refusal:
    """Return what is said to a request whose queue has no room."""
    return Refusal(nodes, quota=full.message)


def only_on(queue: str, models: tuple[str, ...]) -> str:
    """Return what is said to a request that may have some models only, and fits on none of these."""
    return f"queue {queue}: has room on {', '.join(models)} only"
