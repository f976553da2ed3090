"""The audit log: which key called what, and the result, for every call that changes something.

The gate records the entries. Changes by admins are in the store before the admin gets the response. All other
entries are buffered and written every FLUSH_EVERY_S, so that no task waits for the log: a crash of this
process loses the buffer, a clean stop loses nothing. While the store is unreachable, up to MAX_BUFFERED
entries wait here. Requests without a valid key add at most UNAUTHENTICATED_PER_S entries a second, and those
of a key beyond its limits at most LIMITED_PER_S, so that floods cannot fill the store's disk, or push the
rest out of the log.
"""

import asyncio
import contextlib
from collections import Counter as Counted
from collections import deque

import msgspec
import structlog
from prometheus_client import Counter
from starlette.types import Scope

from gpu_orchestrator.adapters.store.audit import AuditLog, Stream
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager.access.keys import Key

log = structlog.get_logger()
FLUSH_EVERY_S = 0.25
MAX_BATCH = 500
MAX_BUFFERED = 50_000
UNAUTHENTICATED_PER_S = 10
LIMITED_PER_S = 5
TOO_MANY = 429
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `at_ms` is when the response was known; `key_id` is empty if the request had no valid key."""

    at_ms: int
    key_id: str
    owner: str
    action: str
    object: str
    status: int
    correlation_id: str
    source: str


class Audit:
    def __init__(self, stored: AuditLog, dropped: Counter) -> None:
        self._stored, self._dropped = stored, dropped
        self._buffer: deque[tuple[Stream, Entry]] = deque()
        self._writing = asyncio.Lock()
        self._second, self._counts = 0, Counted[str]()
        """The latest second with refused requests of these kinds, and how many it had by key."""

    async def record(self, stream: Stream, entry: Entry) -> None:
        """Buffer an entry. Entries of `changes` are written before this returns, if the store answers. If its
        answer is lost, they may be in the log twice."""
        if not entry.key_id and not self._admits("", entry.at_ms, UNAUTHENTICATED_PER_S):
            return self._dropped.labels("stranger").inc()
        if entry.status == TOO_MANY and not self._admits(entry.key_id, entry.at_ms, LIMITED_PER_S):
            return self._dropped.labels("over limit").inc()
        if len(self._buffer) >= MAX_BUFFERED:
            self._buffer.popleft()
            self._dropped.labels("store away").inc()
        self._buffer.append((stream, entry))
        if stream == "changes":
            with contextlib.suppress(StoreError):  # the entry stays in the buffer for the next flush
                await self.flush()
        return None

    def _admits(self, key_id: str, at_ms: int, most: int) -> bool:
        """Return True if fewer than `most` such requests of this key were recorded in this second."""
        if at_ms // 1000 != self._second:
            self._second, self._counts = at_ms // 1000, Counted()
        self._counts[key_id] += 1
        return self._counts[key_id] <= most

    async def flush(self) -> None:
        async with self._writing:
            while self._buffer:
                batch = [self._buffer.popleft() for _ in range(min(len(self._buffer), MAX_BATCH))]
                try:
                    await self._stored.write([(stream, _encode(entry).decode()) for stream, entry in batch])
                except BaseException:
                    self._buffer.extendleft(reversed(batch))
                    raise

    async def run(self) -> None:
        """Flush the buffer every FLUSH_EVERY_S, forever."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            with contextlib.suppress(StoreError):
                await self.flush()


def stream_of(needs: str, key: Key | None) -> Stream:
    """Return the stream for an entry. Changes by admins have their own, so that no flood pushes them out."""
    return "changes" if needs == "admin" and key is not None and key.may("admin") else "traffic"


def entry_of(scope: Scope, *, action: str, status: int, at_ms: int) -> Entry:
    state = scope["state"]
    key: Key | None = state.get("key")
    return Entry(
        at_ms=at_ms,
        key_id=key.id if key else "",
        owner=key.owner if key else "",
        action=action,
        object=state.get("object") or "/".join(map(str, scope.get("path_params", {}).values())),
        status=status,
        correlation_id=state["correlation"],
        source=(scope.get("client") or ("",))[0],
    )
