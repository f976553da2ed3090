"""What a dispatcher works with."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.cluster.metrics import Metrics
from gpu_orchestrator.apps.cluster.owners import Owners
from gpu_orchestrator.apps.cluster.translate import Memory, Seen
from gpu_orchestrator.policies.registry import Registry

Deliver = Callable[[Seen, session.Assign], None]


@dataclass(frozen=True, slots=True)
class Means:
    store: Store
    deliver: Deliver
    registry: Registry
    memory: Memory
    metrics: Metrics
    now: Callable[[], float]
    """The store's clock in seconds, as far as we know it."""
    owners: Owners
