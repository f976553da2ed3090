"""Pods that wait: each has a request in the engine, or a reported reason why it cannot be scheduled.

Until `open` is called, requests are held back: all holdings must be known before the first device is given.
From then on each enters the engine at once, unless many come together: those enter a few per tick.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.cycle.shape_limit import Kind, ShapeLimit, kind_of
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, RequestAdded, RequestRemoved
from gpu_orchestrator.policies.registry import UnknownPolicy

ENTER_PER_TICK = 64
LONGEST_REASON = 4096
MAX_JUDGED = 400
"""How many different shapes one refresh judges: among thousands of nodes, each takes a millisecond or
more."""


class PendingPods:
    """`our_pods` are this scheduler's pods by UID; `report` is called when a pod's reason to wait changes,
    and `wake` when `enter_some` is to be called soon; `is_placed` returns True if a pod is bound or being
    bound. Of one namespace, `max_shapes` different shapes wait in the engine at once."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        engine: Engine,
        our_pods: dict[str, Pod],
        report: Callable[[Pod, str], None],
        *,
        wake: Callable[[], None],
        is_placed: Callable[[str], bool],
        max_shapes: int,
    ) -> None:
        self._feed, self._engine, self._our_pods, self._report = feed, engine, our_pods, report
        self._wake, self._is_placed = wake, is_placed
        self._limit = ShapeLimit(max_shapes)
        self._reasons: dict[str, str] = {}
        self._in_engine: dict[Kind, dict[str, None]] = {}
        self._judged_at: dict[Kind, tuple[int, int]] = {}
        """In which state of the cluster and of the queues each was judged."""
        self._entering: dict[str, RequestAdded] = {}
        self._is_open = False

    def reason(self, uid: str) -> str:
        """Return the reason last reported for the pod; empty if none was."""
        return self._reasons.get(uid, "")

    def request_of(self, uid: str) -> Request | None:
        """Return the request with which the pod waits; None if it has none, or has not entered yet."""
        return self._limit.request_of(uid)

    def held_back(self) -> int:
        """Return how many pods wait outside the engine because their namespace has too many shapes there."""
        return self._limit.held_count

    @property
    def has_entering(self) -> bool:
        """True if requests wait for the next tick to enter the engine."""
        return self._is_open and bool(self._entering)

    def open(self) -> None:
        """Let requests enter: the watches have delivered the initial state. Those held back so far enter in
        the order in which the engine tries them."""
        held_back = sorted(
            self._entering.values(), key=lambda each: (-each.request.priority, each.since or 0.0)
        )
        self._entering = {each.request.key: each for each in held_back}
        self._is_open = True
        self.enter_some()

    def enter_some(self) -> None:
        """Let the next requests enter; the others wait for the next tick."""
        if self._is_open:
            for uid in list(islice(self._entering, ENTER_PER_TICK)):
                if (added := self._entering.pop(uid, None)) is not None:
                    self._enter(added)
            if self._entering:
                self._wake()

    def add(self, added: RequestAdded) -> None:
        if self.has_entering or not self._is_open:
            self._entering[added.request.key] = added
        else:
            self._enter(added)

    def withdraw(self, uid: str) -> None:
        """Remove the pod's request from the engine, which frees what the request counted."""
        self.clear_reason(uid)
        self._feed(RequestRemoved(uid))

    def clear_reason(self, uid: str) -> None:
        """Forget the pod's reason: it does not wait any longer, or its request is withdrawn."""
        self._entering.pop(uid, None)
        self._reasons.pop(uid, None)
        self._leave(uid)

    def refuse(self, uid: str, why: str) -> None:
        """Report why the pod waits, unless that was the last reason reported. A reason may quote what the
        pod's owner wrote, so its length is bounded."""
        if len(why) > LONGEST_REASON:
            why = f"{why[: LONGEST_REASON - 1]}…"
        if self.reason(uid) != why and uid in self._our_pods:
            self._reasons[uid] = why
            self._report(self._our_pods[uid], why)

    def refresh(self, limit: int) -> Iterator[None]:
        """Report reasons that have changed while other pods came and went. One step judges one shape, those
        judged longest ago first; at most `limit` reasons are reported."""
        judged = 0
        for kind in list(self._in_engine):
            if limit <= 0 or judged >= MAX_JUDGED:
                return
            mark = self._engine.cluster.changed.mark, self._engine.queues.version
            if kind not in self._in_engine or self._judged_at.get(kind) == mark:
                continue
            uids = self._in_engine[kind] = self._in_engine.pop(kind)
            limit = self._report_changed(uids, limit)
            if limit > 0:
                self._judged_at[kind] = mark
            judged += 1
            yield

    def _report_changed(self, uids: dict[str, None], limit: int) -> int:
        """Judge the shape of these pods and report up to `limit` changed reasons; return what is left of
        it."""
        now = self._why(uids)
        others = [uid for uid in uids if now and self.reason(uid) not in ("", now)]
        for uid in others[:MAX_JUDGED]:
            if limit <= 0:
                break
            note = self._engine.note(uid)  # of a place that is kept: each pod may declare another run time
            if (why := f"{now}; {note}" if note else now) != self.reason(uid):
                limit -= 1
                uids[uid] = uids.pop(uid)
                self.refuse(uid, why)
        return limit

    def _why(self, uids: Iterable[str]) -> str:
        """Return why the first of these pods that waits in the engine does not fit now."""
        waiting = next((uid for uid in uids if self._engine.waiting(uid)), None)
        refusal = self._engine.why(waiting) if waiting else None
        return replace(refusal, kept="").message if refusal else ""

    def _enter(self, added: RequestAdded) -> None:
        uid = added.request.key
        # If an earlier request of the pod was placed, to remove that one would free what the pod holds.
        if uid not in self._our_pods or self._is_placed(uid):
            return
        if self._limit.request_of(uid) != added.request:
            self._leave(uid)
        if not self._limit.enter(added):
            self._feed(RequestRemoved(uid))  # it may have asked for something else before
            self.refuse(uid, _too_many_shapes(added.request.tenant, self._limit.most))
            return
        self._in_engine.setdefault(kind_of(added.request), {})[uid] = None
        try:
            self._feed(added)
        except UnknownPolicy as error:
            self._leave(uid)
            self._feed(RequestRemoved(uid))  # it may have asked for a known one before
            self.refuse(uid, str(error))

    def _leave(self, uid: str) -> None:
        """Stop counting the pod's shape; others of its namespace may come in for it."""
        if (request := self._limit.request_of(uid)) is None:
            return
        kind = kind_of(request)
        alike = self._in_engine.get(kind, {})
        alike.pop(uid, None)
        if not alike:
            self._in_engine.pop(kind, None)
            self._judged_at.pop(kind, None)
        if coming := self._limit.leave(uid):
            self._entering.update((each.request.key, each) for each in coming)
            self._wake()


def _too_many_shapes(namespace: str, most: int) -> str:
    return (
        f"{most} different GPU requests of namespace {namespace} wait already, the most that are considered "
        "at once (maxWaitingShapes), and this pod asks for something else again; it is considered when one "
        "of them is bound or deleted; let pods ask alike, or ask an administrator to raise the limit"
    )
