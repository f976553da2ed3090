"""What the parts of one engine share: the cluster as it is believed to be, the requests that wait, and those
that are being placed. Made by the engine; `intake` and `decisions` change it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.gangs import Gangs
from gpu_orchestrator.engine.in_flight import InFlight
from gpu_orchestrator.engine.model_rechecks import ModelRechecks
from gpu_orchestrator.engine.models import Models
from gpu_orchestrator.engine.order import Order
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota
from gpu_orchestrator.engine.scheduling_queue import SchedulingQueue


@dataclass(slots=True)
class Parts:
    """`first` are requests to be decided before all others; `promised` are those of them whose room was kept
    until now."""

    policy_of: Callable[[Request], Policy]
    rng: Rng
    order: Order
    cache: Cache
    fair_share: FairShare
    quota: Quota
    models: Models
    queue: SchedulingQueue
    gangs: Gangs
    in_flight: InFlight
    rechecks: ModelRechecks = field(default_factory=ModelRechecks)
    first: list[str] = field(default_factory=list)
    promised: set[str] = field(default_factory=set)
    now: float = 0.0
    rows_at_tick: int = 0
    """How many rows had been judged at the last `Tick`."""

    def take_out(self, waiting: Waiting) -> None:
        """Take out a request from wherever it waits."""
        if waiting.request.gang is None:
            self.queue.remove(waiting)
        elif (speaker := self.gangs.leave(waiting.request.key, self.now)) is not None:
            self.queue.remove(speaker)

    def open_model(self, model: str) -> None:
        """Judge the requests for this model again: a copy of it may be free, or waiting for one too long."""
        self.queue.open(self.models.line.groups(model))
