"""Keep a live copy of one kind of object: list, watch, resume, and list again when the version is lost.

    pods = Watch(client, PODS, fields="spec.schedulerName=gpu-scheduler", indices={"node": node_of})
    pods.on_change(handler)                    # handler(old, new), called after the copy has changed
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.run())          # never returns; cancel it to stop
        await pods.synced()

        ┌──────────── 410, ERROR event, or three refusals in a row ─────────────┐
        ▼                                                                       │
    LISTING ── complete: store.replace also reports deletions ───────► WATCHING ┘
                                                                        ▲     │
                                         resume at the last version ────┴─────┘ end, cut or silence

To detect a dead connection, we ask the server to end every stream after `turn_s`, and drop a stream that has
not ended `grace_s` later. The server sends bookmarks before the end, so the version to resume at is recent.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.frames import Frame, Frames
from gpu_orchestrator.adapters.kube.informer.handlers import Handler, Handlers
from gpu_orchestrator.adapters.kube.informer.interning import intern_strings
from gpu_orchestrator.adapters.kube.informer.store import Index, Store
from gpu_orchestrator.adapters.kube.retry import Backoff
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.adapters.kube.transport.urls import collection
from gpu_orchestrator.api.wire import Object, Resource, key

T = TypeVar("T", bound=Object)

TURN_S = (30.0, 45.0)
GRACE_S = 10.0
# If the initial events pause this long, their end will never come: an old server ignored sendInitialEvents.
INITIAL_SILENCE_S = 15.0
INITIAL_LIMIT_S = 600
REFUSALS = 3
SHORT_S = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class Counts:
    """Counters since the start, for metrics and tests."""

    lists: int = 0
    streams: int = 0
    events: int = 0
    hangs: int = 0
    failures: int = 0
    bad_objects: int = 0


class Watch(Generic[T]):
    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indices: Mapping[str, Index[T]] | None = None,
        turn_s: tuple[float, float] = TURN_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self.store: Store[T] = Store(indices)
        self.counts = Counts()
        self.last_error: errors.KubeError | None = None
        self._client, self._resource, self._namespace = client, resource, namespace
        self._selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._turn_s, self._grace_s = turn_s, grace_s
        self._operation = errors.Operation("watch", resource.plural, resource.group, "", namespace)
        self._handlers = Handlers(self.store, resource.plural)
        self._synced = asyncio.Event()
        self._streams_lists = True
        self._version = ""
        self._got_event = False
        self._gathering: dict[str, T] | None = None

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler(old, new)` for each object in the store and for each change from now on."""
        self._handlers.add(handler)

    async def on_change_in_slices(self, handler: Handler[T], breath: Breath) -> None:
        """Like `on_change`, and let other tasks run while the handler receives the objects in the store."""
        await self._handlers.add_in_slices(handler, breath)

    def on_later_change(self, handler: Handler[T]) -> None:
        """Call `handler(old, new)` for each change from now on, but not for the objects in the store."""
        self._handlers.add_for_changes(handler)

    def on_failure(self, failed: Callable[[], None]) -> None:
        """Call `failed` whenever a handler has raised."""
        self._handlers.failed = failed

    async def synced(self) -> None:
        """Wait until the first list is complete."""
        await self._synced.wait()

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the collection that the store shows."""
        return self._version

    async def run(self) -> None:
        """Keep the store current until cancelled."""
        backoff, failed, refused = Backoff(base_s=0.2, cap_s=8.0), 0, 0
        loop = asyncio.get_running_loop()
        while True:
            began, self._got_event, at_least_s = loop.time(), False, 0.0
            try:
                await self._turn()
                self.last_error = None
                self._got_event |= loop.time() - began > SHORT_S  # a stream without events that ended on time
            except errors.Gone as error:
                self._list_again(error)
            except errors.KubeError as error:
                at_least_s = getattr(error, "delay_s", 0.0)
                refused += isinstance(error, errors.ApiError)
                self._log_error(error)
            # A stream that ends at once without an event, as from a server that shuts down, is a failure too:
            # neither that nor a 410 to every try may become a storm of requests.
            failed, refused = (0, 0) if self._got_event else (failed + 1, refused)
            if refused >= REFUSALS:
                refused = 0
                self._list_again(self.last_error)
            if failed:
                await asyncio.sleep(backoff.delay_s(failed, at_least_s))

    async def _turn(self) -> None:
        await self._report_listed()  # the rest, if the last stream ended in the middle of it
        if self._version:
            await self._watch()
        elif self._streams_lists:
            await self._streamed_list()
        else:
            await self._paged_list()

    async def _paged_list(self) -> None:
        self._gathering, version = {}, ""
        pages = self._client.pages(
            self._resource,
            self._namespace,
            labels=self._selectors["labelSelector"],
            fields=self._selectors["fieldSelector"],
            on_bad=self._handle_bad,
        )
        async for page in pages:
            version = page.metadata.resource_version
            for obj in page.items or ():
                intern_strings(obj)
                self._gathering[key(obj)] = obj
        self._complete(version)
        await self._report_listed()
        self._got_event = True

    async def _streamed_list(self) -> None:
        """Get the list through a watch: first all existing objects, then a marked bookmark, then changes."""
        self._gathering = {}
        query = {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "timeoutSeconds": INITIAL_LIMIT_S,
        }
        try:
            await self._stream(query, limit_s=INITIAL_SILENCE_S)
        except (errors.Invalid, errors.BadRequest) as error:
            self._streams_lists = False
            log.info("server does not stream lists", resource=self._resource.plural, error=str(error))
        except TimeoutError:
            if self._version:
                return  # the list was complete, and we ended the ordinary watch that it became
            self._streams_lists = False
            log.warning("streamed list fell silent, listing by pages", resource=self._resource.plural)

    async def _watch(self) -> None:
        turn_s = random.uniform(*self._turn_s)  # noqa: S311  # spreads the load, guards nothing
        query = {"resourceVersion": self._version, "timeoutSeconds": max(1, round(turn_s))}
        try:
            await self._stream(query, limit_s=turn_s + self._grace_s)
        except TimeoutError:
            self.counts.hangs += 1
            log.warning("watch fell silent, resuming", resource=self._resource.plural, after_s=turn_s)

    async def _stream(self, query: Mapping[str, Any], *, limit_s: float) -> None:
        """Read one stream to its end. Raises TimeoutError when it should have ended and did not."""
        self.counts.streams += 1
        query = {"watch": "true", "allowWatchBookmarks": "true", **self._selectors, **query}
        request = Request("GET", collection(self._resource, self._namespace, query))
        loop, frames = asyncio.get_running_loop(), Frames()
        async with (
            asyncio.timeout(limit_s) as limit,
            self._client.stream(
                self._operation,
                request,
                timeout_s=INITIAL_LIMIT_S + GRACE_S,
                renew=isinstance(self.last_error, errors.Unauthorized),
            ) as stream,
        ):
            async for chunk in stream.chunks:
                initial = self._gathering is not None
                for frame in frames.feed(chunk):
                    self._handle(frame)
                    self._got_event = True
                    if self._handlers.has_listed:
                        await self._report_listed()
                if initial:
                    left_s = INITIAL_SILENCE_S if self._gathering is not None else self._turn_s[1]
                    limit.reschedule(loop.time() + left_s)
                await asyncio.sleep(0)  # let other tasks run, even when the stream is busy
        frames.close()

    def _handle(self, frame: Frame) -> None:
        if frame.type == "ERROR":
            self._version = ""  # for any error we cannot resume at our version: list again
            raise errors.from_event(self._operation, frame.object)
        if frame.type == "BOOKMARK":
            self._handle_bookmark(codec.metadata(frame.object))
            return
        self.counts.events += 1
        if frame.type == "DELETED":
            self._handle_deletion(codec.metadata(frame.object))
            return
        if frame.is_cut:
            self._handle_bad(codec.too_deep(self._resource), frame.object)
            return
        try:
            obj = codec.decode(self._resource, frame.object)
        except errors.BadAnswer as error:
            self._handle_bad(error, frame.object)
            return
        intern_strings(obj)
        if self._gathering is not None:
            self._gathering[key(obj)] = obj
            return
        self._version = obj.metadata.resource_version
        self._handlers.notify(self.store.put(obj))

    def _handle_deletion(self, gone: codec.MetadataOnly) -> None:
        """Remove the object. Only its metadata is read, so it need not fit its type."""
        if self._gathering is not None:
            self._gathering.pop(key(gone), None)
            return
        self._version = gone.metadata.resource_version
        self._handlers.notify(self.store.drop(key(gone), gone.metadata.uid))

    def _handle_bookmark(self, mark: codec.MetadataOnly) -> None:
        version = mark.metadata.resource_version
        if self._gathering is None:
            self._version = version
        elif mark.metadata.annotations.get("k8s.io/initial-events-end") == "true":
            self._complete(version)

    def _complete(self, version: str) -> None:
        """Put the complete list into the store, and report what changed since the last list or event."""
        gathered, self._gathering = self._gathering or {}, None
        self._version = version
        self.counts.lists += 1
        self._handlers.set_listed(self.store.replace(gathered))
        self._synced.set()

    async def _report_listed(self) -> None:
        """Report a list before the next event is handled, and let other tasks run meanwhile: after an outage
        every object may have changed."""
        await self._handlers.report_listed(Breath(asyncio.get_running_loop().time))

    def _list_again(self, error: errors.KubeError | None) -> None:
        log.info("listing again", resource=self._resource.plural, error=str(error))
        self._version, self._gathering = "", None

    def _handle_bad(self, error: errors.BadAnswer, raw: msgspec.Raw) -> None:
        """Keep the last good state of an object that does not fit its type: old is better than missing.

        If its uid differs, the object that we stored has been deleted, so drop that one.
        """
        self.counts.bad_objects += 1
        bad = codec.metadata(raw)
        log.error(
            "object does not fit its type", resource=self._resource.plural, key=key(bad), error=str(error)
        )
        known = self.store.get(key(bad))
        is_same = known is not None and known.metadata.uid == bad.metadata.uid
        if self._gathering is None:
            self._version = bad.metadata.resource_version
            self._handlers.notify([] if is_same else self.store.drop(key(bad)))
        elif known is not None and is_same:
            self._gathering[key(bad)] = known

    def _log_error(self, error: errors.KubeError) -> None:
        self.counts.failures += 1
        # Warn once per kind of error: a server that is away for an hour is one line, not a thousand.
        write = log.warning if type(error) is not type(self.last_error) else log.debug
        write("watch interrupted", resource=self._resource.plural, error=str(error))
        self.last_error = error
