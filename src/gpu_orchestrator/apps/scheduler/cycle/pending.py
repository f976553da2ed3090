"""Pods that wait: each has a request in the engine, or a reported reason why it cannot be scheduled.

Until `open` is called, requests are held back: all holdings must be known before the first device is given.
"""

from collections.abc import Callable

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded, RequestRemoved
from gpu_orchestrator.policies.registry import UnknownPolicy


class PendingPods:
    """`our_pods` are this scheduler's pods by UID; `report` is called when a pod's reason to wait changes."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        engine: Engine,
        our_pods: dict[str, Pod],
        report: Callable[[Pod, str], None],
    ) -> None:
        self._feed, self._engine, self._our_pods, self._report = feed, engine, our_pods, report
        self._reasons: dict[str, str] = {}
        self._deferred: dict[str, RequestAdded] | None = {}

    def reason(self, uid: str) -> str:
        """Return the reason last reported for the pod; empty if none was."""
        return self._reasons.get(uid, "")

    def open(self) -> None:
        """Send the requests held back so far: the watches have delivered the initial state."""
        deferred, self._deferred = self._deferred or {}, None
        for added in deferred.values():
            self.add(added)

    def add(self, added: RequestAdded) -> None:
        uid = added.request.key
        if self._deferred is not None:
            self._deferred[uid] = added
        elif uid in self._our_pods:
            try:
                self._feed(added)
            except UnknownPolicy as error:
                self.refuse(uid, str(error))

    def withdraw(self, uid: str) -> None:
        """Remove the pod's request from the engine, which frees what the request counted."""
        self.clear_reason(uid)
        if self._deferred:
            self._deferred.pop(uid, None)
        self._feed(RequestRemoved(uid))

    def clear_reason(self, uid: str) -> None:
        """Forget the pod's reason: it does not wait any longer, or its request is withdrawn."""
        self._reasons.pop(uid, None)

    def refuse(self, uid: str, why: str) -> None:
        """Report why the pod waits, unless that was the last reason reported."""
        if self.reason(uid) != why and uid in self._our_pods:
            self._reasons[uid] = why
            self._report(self._our_pods[uid], why)

    def refresh(self, limit: int) -> None:
        """Report reasons that have changed while other pods came and went. At most `limit` per call, those
        reported longest ago first."""
        now: dict[tuple[Shape, str, str], str] = {}
        for uid, reported in list(self._reasons.items()):
            request = self._engine.waiting(uid)
            if limit <= 0 or request is None:
                continue
            same_shape = (request.shape, request.strategy, request.allocator)
            if same_shape not in now:
                refusal = self._engine.why(uid)
                now[same_shape] = refusal.message if refusal else ""
            if now[same_shape] and now[same_shape] != reported:
                limit -= 1
                del self._reasons[uid]
                self.refuse(uid, now[same_shape])
