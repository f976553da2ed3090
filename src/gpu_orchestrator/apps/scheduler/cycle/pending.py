"""Pods that wait: each has asked the engine, or was told why it cannot be served.

Until it is opened nothing is asked: who holds what must be known before anybody gets something.
"""

from collections.abc import Callable

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded, RequestRemoved
from gpu_orchestrator.policies.registry import UnknownPolicy


class PendingPods:
    """`our_pods` are this scheduler's pods by UID; `tell` is called when a pod's reason to wait changed."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        engine: Engine,
        our_pods: dict[str, Pod],
        tell: Callable[[Pod, str], None],
    ) -> None:
        self._feed, self._engine, self._our_pods, self._tell = feed, engine, our_pods, tell
        self._why: dict[str, str] = {}
        self._later: dict[str, RequestAdded] | None = {}

    def why(self, uid: str) -> str:
        """What the pod was told; empty if nothing."""
        return self._why.get(uid, "")

    def open(self) -> None:
        """All that there was has been told: ask."""
        later, self._later = self._later or {}, None
        for asked in later.values():
            self.ask(asked)

    def ask(self, asked: RequestAdded) -> None:
        uid = asked.request.key
        if self._later is not None:
            self._later[uid] = asked
        elif uid in self._our_pods:
            try:
                self._feed(asked)
            except UnknownPolicy as error:
                self.refuse(uid, str(error))

    def withdraw(self, uid: str) -> None:
        """The pod asks no longer, and what it counted is free."""
        self.bound(uid)
        if self._later:
            self._later.pop(uid, None)
        self._feed(RequestRemoved(uid))

    def bound(self, uid: str) -> None:
        """The pod has what it waited for."""
        self._why.pop(uid, None)

    def refuse(self, uid: str, why: str) -> None:
        if self.why(uid) != why and uid in self._our_pods:
            self._why[uid] = why
            self._tell(self._our_pods[uid], why)

    def refresh(self, most: int) -> None:
        """Reasons grow old while others come and go: tell those that changed anew, at most so many at once,
        those told longest ago first."""
        now: dict[tuple[Shape, str, str], str] = {}
        for uid, told in list(self._why.items()):
            request = self._engine.waiting(uid)
            if most <= 0 or request is None:
                continue
            alike = (request.shape, request.strategy, request.allocator)
            if alike not in now:
                refusal = self._engine.why(uid)
                now[alike] = refusal.message if refusal else ""
            if now[alike] and now[alike] != told:
                most -= 1
                del self._why[uid]
                self.refuse(uid, now[alike])
