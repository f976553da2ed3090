"""Record what happened to an object as Kubernetes Events, which `kubectl describe` shows.

    recorder = Recorder(client, "gpu-scheduler")
    recorder.normal(pod_ref, "Scheduled", "bound to node-a, devices 0,1")       # returns at once
    group.create_task(recorder.run())

Repeats become one Event with a count. Each reason has its own budget for each object: past `PER_REASON`
different notes the rest share one counted Event, so that many refusals never hide a placement. Events that
arrive faster than the recorder can write them wait in a bounded queue; when it is full, they are dropped and
counted.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import EVENTS
from gpu_orchestrator.api.wire import Json, Object, Resource

log = structlog.get_logger()

CAPACITY = 4096
REMEMBERED = 4096
PER_REASON = 10
REFILL_S = 300.0
# Update the count of a series at most this often: only the last count matters.
SERIES_EVERY_S = 10.0
FORGET_S = 600.0
WRITERS = 8
MAX_NOTE = 1024

_EVENTS = ignore_answer(EVENTS)


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


def about(resource: Resource[Any], obj: Object) -> Reference:
    meta = obj.metadata
    return Reference(resource.kind, meta.name, meta.namespace, meta.uid, resource.api_version)


Reason = tuple[Reference, str, str]
"""The object, the type of event and its reason."""

Key = tuple[Reference, str, str, str | int]
"""A reason with its note; or, for notes that share one event, with the number of their period."""


@dataclass(slots=True)
class _Series:
    """One event and its repeats. `written` is the count that the server has; 0 means none yet."""

    name: str
    action: str
    note: str
    first: datetime
    last: datetime
    count: int = 1
    written: int = 0
    written_at: float = field(default=float("-inf"))


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Recorder:
    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        capacity: int = CAPACITY,
        writers: int = WRITERS,
        pace: Callable[[], Awaitable[None]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.dropped = 0
        self._client, self._component, self._now = client, component, now
        self._instance = (instance or f"{component}-{socket.gethostname()}")[:128]
        self._capacity, self._remembered = capacity, max(REMEMBERED, capacity)
        self._writers, self._pace = writers, pace
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._buckets: OrderedDict[Reason, _Bucket] = OrderedDict()
        self._waiting: dict[Key, None] = {}
        self._busy = 0
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def normal(self, what: Reference, reason: str, note: str, *, action: str = "") -> None:
        self.record("Normal", what, reason, note, action=action)

    def warning(self, what: Reference, reason: str, note: str, *, action: str = "") -> None:
        self.record("Warning", what, reason, note, action=action)

    def record(self, kind: str, what: Reference, reason: str, note: str, *, action: str = "") -> None:
        """Queue an event for writing and return at once."""
        key = self._count_or_add((what, kind, reason), note, action or reason)
        if len(self._waiting) >= self._capacity and key not in self._waiting:
            self.dropped += 1
            return
        self._waiting[key] = None
        self._idle.clear()
        self._wakeup.set()

    def _count_or_add(self, reason: Reason, note: str, action: str) -> Key:
        """Count a repeat, or start a series: one for this note or, past the budget, the shared one."""
        now = self._now()
        key: Key = (*reason, _shortened(note))
        if self._counted(key, now):
            return key
        if not self._allowed(reason):
            # A written note cannot change, so each period gets a new shared event.
            key, note = (*reason, int(now.timestamp() // FORGET_S)), f"among others: {note}"
            if self._counted(key, now):
                return key
        name = f"{reason[0].name[:200]}.{uuid4().hex[:16]}"
        self._series[key] = _Series(name, action, _shortened(note), now, now)
        if len(self._series) > self._remembered:
            self._forget_oldest()
        return key

    def _counted(self, key: Key, now: datetime) -> bool:
        known = self._series.get(key)
        if known is None or (now - known.last).total_seconds() >= FORGET_S:
            return False
        known.count, known.last = known.count + 1, now
        self._series.move_to_end(key)
        return True

    def _forget_oldest(self) -> None:
        oldest, _ = self._series.popitem(last=False)
        if oldest in self._waiting:
            del self._waiting[oldest]
            self.dropped += 1

    def _allowed(self, reason: Reason) -> bool:
        """Take a token for a new note of this reason: a runaway loop must not fill the event store."""
        now = self._now().timestamp()
        bucket = self._buckets.pop(reason, None) or _Bucket(PER_REASON, now)
        self._buckets[reason] = bucket
        while len(self._buckets) > self._remembered:
            self._buckets.popitem(last=False)
        bucket.tokens = min(PER_REASON, bucket.tokens + (now - bucket.at) / REFILL_S)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    async def run(self) -> None:
        """Write recorded events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._writers):
                group.create_task(self._writer())

    async def drain(self, timeout_s: float = 2.0) -> bool:
        """Wait until all recorded events are written. Return False if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _writer(self) -> None:
        while True:
            while not self._waiting:
                self._wakeup.clear()
                await self._wakeup.wait()
            if self._pace:
                await self._pace()
            if not self._waiting:
                continue
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._busy += 1
            try:
                await self._write(key, self._series[key])
            except KubeError as error:
                self.dropped += 1
                log.info("event not written", reason=key[2], about=key[0].name, error=str(error))
            finally:
                self._busy -= 1
                if not self._busy and not self._waiting:
                    self._idle.set()

    async def _write(self, key: Key, series: _Series) -> None:
        loop, count = asyncio.get_running_loop(), series.count
        if series.written == 0:
            series.written, series.written_at = count, loop.time()
            await self._create(key, series, count)
            return
        early_s = series.written_at + SERIES_EVERY_S - loop.time()
        if early_s > 0:
            loop.call_later(early_s, self._wait_again, key)
            return
        if count > series.written:
            series.written, series.written_at = count, loop.time()
            await self._count(key, series, count)

    def _wait_again(self, key: Key) -> None:
        series = self._series.get(key)
        if series and series.count > series.written:
            self._waiting[key] = None
            self._idle.clear()
            self._wakeup.set()

    async def _create(self, key: Key, series: _Series, count: int) -> None:
        # The name is unique to this series, so an event that exists already is the same one.
        await self._client.create(_EVENTS, self._event(key, series, count), idempotent=True)

    async def _count(self, key: Key, series: _Series, count: int) -> None:
        body = {"series": _repeats(series, count)}
        try:
            await self._client.patch(_EVENTS, series.name, body, _namespace_of(key[0]))
        except NotFound:  # the server deletes events after an hour
            await self._create(key, series, count)

    def _event(self, key: Key, series: _Series, count: int) -> Json:
        what, kind, reason, _ = key
        event: Json = {
            "metadata": {"name": series.name, "namespace": _namespace_of(what)},
            "eventTime": timestamps.micro_time(series.first),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": series.action,
            "reason": reason,
            "type": kind,
            "note": series.note,
            "regarding": _reference(what),
        }
        if count > 1:
            event["series"] = _repeats(series, count)
        return event


def _repeats(series: _Series, count: int) -> Json:
    return {"count": count, "lastObservedTime": timestamps.micro_time(series.last)}


def _namespace_of(what: Reference) -> str:
    return what.namespace or "default"


def _reference(what: Reference) -> Json:
    fields = {
        "apiVersion": what.api_version,
        "kind": what.kind,
        "name": what.name,
        "namespace": what.namespace,
        "uid": what.uid,
    }
    return {name: value for name, value in fields.items() if value}


def _shortened(note: str) -> str:
    raw = note.encode()
    return note if len(raw) <= MAX_NOTE else raw[: MAX_NOTE - 3].decode(errors="ignore") + "…"
