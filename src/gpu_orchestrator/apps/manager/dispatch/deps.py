"""What the leader's dispatcher is built from. `manager.py` fills it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.assignment import Deliver
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.service_times import ServiceTimes
from gpu_orchestrator.engine.models import ModelRules
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from gpu_orchestrator.policies.registry import Registry


@dataclass(frozen=True, slots=True)
class DispatcherDeps:
    """What a dispatcher needs. `now` returns the store's clock in seconds, as estimated here. `ended` is
    called for each task that ends without an outcome of a worker, such as one that expired."""

    store: Store
    deliver: Deliver
    registry: Registry
    memory: MemoryPolicy
    metrics: Metrics
    now: Callable[[], float]
    quotas: Quotas
    ended: Callable[[str], None] = lambda _: None
    most_active: Callable[[], int | None] = lambda: None
    """How many attempts may be active now, because their results need room; None for any number."""
    deliver_filled: Deliver = lambda _worker, _assign: None
    """As `deliver`, for a task whose parameters take results of others."""
    models: ModelBook = field(default_factory=ModelBook)
    rules: ModelRules = ModelRules()  # noqa: RUF009 - frozen
    reported: Callable[[WorkerState], None] = lambda _: None
    """Called with a worker whose models were reported."""
    preloads: bool = True
    """Whether models are loaded before the turn of the tasks that name them."""
    tell: Callable[[WorkerState, session.Message], None] = lambda _worker, _message: None
    service_times: ServiceTimes = field(default_factory=ServiceTimes)
    reservations: ReservationRules = OFF
