"""What is held when a scheduler takes over, collected before the engine counts it. Kept by the coordinator.

A device lease counts until the pod that holds it is known, and then the pod counts instead. In a full cluster
the engine would take in tens of thousands of placements only to remove them again a moment later.
"""

from collections.abc import Iterator
from itertools import islice

from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved

BATCH = 100


class InitialHoldings:
    def __init__(self) -> None:
        self._observed: dict[str, PlacementObserved] = {}

    def keep(self, event: Event) -> bool:
        """Return True if the event is kept here, or ends a placement that was; the engine need not know
        then."""
        match event:
            case PlacementObserved(placement):
                self._observed[placement.key] = event
                return True
            case RequestRemoved(key):
                return self._observed.pop(key, None) is not None
            case _:
                return False

    def batches(self) -> Iterator[list[PlacementObserved]]:
        """Remove and return all placements, a few at a time."""
        while keys := list(islice(self._observed, BATCH)):
            yield [self._observed.pop(key) for key in keys]
