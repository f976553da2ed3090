"""Requests that are being placed, by key. Their number is bounded, so that a later request can still go
first; those that take long do not count, so that others need not wait for them."""

from gpu_orchestrator.engine.queue import Waiting


class InFlight(dict[str, Waiting]):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._slow = most, set[str]()

    @property
    def is_full(self) -> bool:
        return len(self) - len(self._slow) >= self._most

    def takes_long(self, key: str) -> None:
        """Do not count this request: to carry it out takes minutes."""
        if key in self:
            self._slow.add(key)

    def land(self, key: str) -> Waiting | None:
        """Return the request that was being placed; from now on it is not."""
        self._slow.discard(key)
        return self.pop(key, None)
