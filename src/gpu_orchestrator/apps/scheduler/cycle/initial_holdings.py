"""What is held when a scheduler takes over, collected before the engine counts it. Kept by the coordinator.

A device lease counts until the pod that holds it is known, and then the pod counts instead. In a full cluster
the engine would take in tens of thousands of placements only to remove them again a moment later.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import structlog

from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved

BATCH = 100

log = structlog.get_logger()


class InitialHoldings:
    def __init__(self) -> None:
        self._observed: dict[str, PlacementObserved] = {}
        self._is_sending = False

    def keep(self, event: Event) -> bool:
        """Return True if the event is kept here, or ends a placement that was; the engine need not know
        then."""
        match event:
            case PlacementObserved(placement) if not self._is_sending or placement.key in self._observed:
                self._observed[placement.key] = event
                return True
            case RequestRemoved(key):
                return self._observed.pop(key, None) is not None and not self._is_sending
            case _:
                return False

    def send(self, handle_all: Callable[[list[PlacementObserved]], object]) -> Iterator[None]:
        """Send all placements to the engine, a few at a time."""
        self._is_sending = True
        while keys := list(islice(self._observed, BATCH)):
            try:
                handle_all([self._observed.pop(key) for key in keys])
            except Exception:  # the edge of one batch: the engine has taken in what it can
                log.exception("holdings could not be counted", keys=keys)
            yield
