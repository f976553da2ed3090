"""What is placed and released, as the queues count it. Kept by the engine."""

from collections.abc import Mapping

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.queue_usage import QueueUsage, usages
from gpu_orchestrator.core.queues import Amounts, Queues, amounts_of
from gpu_orchestrator.engine.cache import Cache


class Quota:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.queues = Queues()

    def take(self, key: str, queue: str, placement: Placement) -> None:
        """Count a placement in its queue; it replaces what the key held before."""
        self.queues.take(key, queue, self._amounts(placement) if queue else ())

    def let_go(self, key: str) -> None:
        self.queues.let_go(key)

    def count_again(self, node: str) -> None:
        """Count what is held on a node whose devices were not known before."""
        for placement in self._cache.on_node(node):
            if queue := self.queues.queue_of(placement.key):
                self.take(placement.key, queue, placement)

    def usages(self, pending: Mapping[str, int]) -> dict[str, QueueUsage]:
        """Return the usage of every queue; `pending` counts the waiting requests of each."""
        cluster = self._cache.cluster
        free = sum(cluster.free_gpus(node.name) for node in cluster) * WHOLE
        return usages(self.queues, pending, free)

    def _amounts(self, placement: Placement) -> Amounts:
        cluster = self._cache.cluster
        devices = cluster.node(placement.node).devices if placement.node in cluster else ()
        models = {each.id: each.model for each in devices}
        return amounts_of(placement, models, unnamed=devices[0].model if devices else "")
