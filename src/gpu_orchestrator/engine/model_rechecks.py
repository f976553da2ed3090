"""When requests that wait for a busy copy of their model are judged again, if nothing happens before. Kept by
the engine."""

from heapq import heappop, heappush


class ModelRechecks:
    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._count: dict[str, int] = {}

    def note(self, model: str, at: float | None, count: int | None) -> None:
        """Judge the requests for this model again at this time, or once `count` of them wait."""
        if count is None:
            self._count.pop(model, None)
        else:
            self._count[model] = count
        if at is None:
            self._at.pop(model, None)
        elif self._at.get(model) != at:
            self._at[model] = at
            heappush(self._heap, (at, model))

    def are_enough(self, model: str, waiting: int) -> bool:
        return waiting >= self._count.get(model, waiting + 1)

    def next_at(self) -> float | None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[str]:
        """Return the models whose time has come."""
        found: list[str] = []
        while (at := self.next_at()) is not None and at <= now:
            model = heappop(self._heap)[1]
            del self._at[model]
            self._count.pop(model, None)
            found.append(model)
        return found
