"""When a fault applies: a trigger counts its matching requests and is due at the nth of them."""

import asyncio
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tests.faults.calls import Call
from tests.faults.faults import Fault


@dataclass(slots=True)
class Trigger:
    """Due at the matching requests nth, nth+1 … `times` of them in all (None: no end).

    It counts requests from the moment it was set. Patterns may contain `*`; a resource may be given with its
    group (`leases.coordination.k8s.io`).
    """

    verb: str
    resource: str
    name: str | None
    nth: int
    times: int | None
    fault: Fault
    seen: int = 0
    hits: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def wait(self, timeout: float = 30, *, hits: int = 1) -> None:
        """Block until the fault has had this many hits."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= hits, timeout):
                raise TimeoutError(
                    f"{self.verb} {self.resource} {self.name or ''} had {self.hits} hits in {timeout} s, "
                    f"not {hits}; {self.seen} requests matched, the fault was due from number {self.nth}"
                )

    async def wait_for_hit(self, timeout: float = 30, *, hits: int = 1) -> None:  # noqa: ASYNC109
        """Wait for hits, like `wait`, without blocking the event loop."""
        await asyncio.to_thread(self.wait, timeout, hits=hits)

    def counts_as_due(self, call: Call) -> bool:
        if not self._matches(call):
            return False
        with self._changed:
            self.seen += 1
            return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)

    def hit(self) -> None:
        with self._changed:
            self.hits += 1
            self._changed.notify_all()

    def _matches(self, call: Call) -> bool:
        full = f"{call.resource}.{call.group}" if call.group else call.resource
        return (
            fnmatchcase(call.verb, self.verb)
            and (fnmatchcase(call.resource, self.resource) or full == self.resource)
            and (self.name is None or fnmatchcase(call.name, self.name))
        )


class Triggers:
    """All triggers of a proxy. Each counts every request it matches; the first due one applies its fault."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Trigger] = []

    def add(self, trigger: Trigger) -> Trigger:
        with self._lock:
            self._all.append(trigger)
        return trigger

    def clear(self) -> None:
        with self._lock:
            self._all.clear()

    def due(self, call: Call) -> Trigger | None:
        with self._lock:
            due = [trigger for trigger in self._all if trigger.counts_as_due(call)]
        return due[0] if due else None
