"""The audit log: who asked for what, and what came of it, for every call that changes something.

What admins change is in the store before they hear the answer. All else is gathered and written a few times
a second, so that a task waits for nobody; a crash of this process loses what it gathered since (EVERY_S), a
clean stop loses nothing. While the store is away entries wait here, MOST_WAITING of them. Of those who have
no key only so many a second are written down: a stranger must not be able to fill the store's disk.
"""

import asyncio
import contextlib
from collections import deque

import msgspec
import structlog
from prometheus_client import Counter
from starlette.types import Scope

from gpu_orchestrator.adapters.store.audit import AuditLog, Stream
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager.access.keys import Key

log = structlog.get_logger()
EVERY_S = 0.25
MOST_AT_ONCE = 500
MOST_WAITING = 50_000
STRANGERS_PER_S = 10
_encode = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """`at_ms` is when the answer was known, `key_id` is empty for who had none that counts."""

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
        self._waiting: deque[tuple[Stream, Entry]] = deque()
        self._writing = asyncio.Lock()
        self._strangers: tuple[int, int] = (0, 0)

    async def note(self, stream: Stream, entry: Entry) -> None:
        """`changes` are written before this returns, if the store is there. If its answer is lost, they may
        be in it twice."""
        if not entry.key_id and not self._hears_stranger(entry.at_ms // 1000):
            return self._dropped.labels("stranger").inc()
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._dropped.labels("store away").inc()
        self._waiting.append((stream, entry))
        if stream == "changes":
            with contextlib.suppress(StoreError):  # it waits for the next time
                await self.flush()
        return None

    def _hears_stranger(self, second: int) -> bool:
        before, count = self._strangers
        self._strangers = (second, count + 1 if second == before else 1)
        return self._strangers[1] <= STRANGERS_PER_S

    async def flush(self) -> None:
        async with self._writing:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
                try:
                    await self._stored.write([(stream, _encode(entry).decode()) for stream, entry in batch])
                except BaseException:
                    self._waiting.extendleft(reversed(batch))
                    raise

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            with contextlib.suppress(StoreError):
                await self.flush()


def stream_of(needs: str, key: Key | None) -> Stream:
    """A flood by who is no admin must not push out what admins did."""
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
