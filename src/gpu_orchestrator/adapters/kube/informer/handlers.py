"""The handlers of a watch, called in the order in which they were added.

A handler that comes late receives the existing objects first. In slices, that takes a while, and objects
change meanwhile: a change of an object that the handler has not received yet is not reported, because the
handler will receive the object as it is then. So each handler sees every object added first, and then its
changes in order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.informer.store import Change, Store
from gpu_orchestrator.api.wire import Object, key

T = TypeVar("T", bound=Object)
Handler = Callable[[T | None, T | None], None]

log = structlog.get_logger()


class Handlers(Generic[T]):
    """`resource` is what the objects are called in logs; `failed` is called after a handler has raised."""

    def __init__(self, store: Store[T], resource: str) -> None:
        self._store, self._resource = store, resource
        self.failed: Callable[[], None] = _ignore
        self._handlers: list[Handler[T]] = []
        self._listed: deque[Change[T]] = deque()
        self._listed_for: list[Handler[T]] = []

    def add(self, handler: Handler[T]) -> None:
        """Call the handler for each object in the store at once, and for each change from now on."""
        self._handlers.append(handler)
        for obj in list(self._store):
            self._call(handler, None, obj)

    def add_for_changes(self, handler: Handler[T]) -> None:
        """Call the handler for each change from now on, but not for the objects in the store: it needs to
        know none of them."""
        self._handlers.append(handler)

    async def add_in_slices(self, handler: Handler[T], breath: Breath) -> None:
        """Like `add`, and let other tasks run in between."""
        replay = _Replay(handler, self._store)
        self._handlers.append(replay.on_change)
        at = len(self._handlers) - 1
        for obj in replay:
            self._call(handler, None, obj)
            if breath.is_due():
                await breath()
        self._handlers[at] = handler

    def notify(self, changes: list[Change[T]]) -> None:
        for old, new in changes:
            for handler in self._handlers:
                self._call(handler, old, new)

    @property
    def has_listed(self) -> bool:
        """True if a part of the last list was not reported yet."""
        return bool(self._listed)

    def set_listed(self, changes: list[Change[T]]) -> None:
        """Set the changes that a list brought, for `report_listed`. A handler that is added later is left
        out: it receives the objects as they are then."""
        self._listed_for = list(self._handlers)
        self._listed.extend(changes if self._listed_for else ())

    async def report_listed(self, breath: Breath) -> None:
        """Report what a list brought, and let other tasks run in between. If cancelled, call it again before
        any other change is reported: it goes on with the next one."""
        while self._listed:
            old, new = self._listed.popleft()
            for handler in self._listed_for:
                self._call(handler, old, new)
            await breath()

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:
            log.exception("watch handler failed", resource=self._resource)
            self.failed()


def _ignore() -> None:
    """Do nothing."""


class _Replay(Generic[T]):
    """The objects that a late handler has not received yet."""

    def __init__(self, handler: Handler[T], store: Store[T]) -> None:
        self._handler, self._store = handler, store
        self._names = store.names()
        self._left = set(self._names)

    def __iter__(self) -> Iterator[T]:
        """Yield each object that is left, as it is then."""
        left = self._left
        for name in self._names:
            if name in left:
                left.discard(name)
                if (obj := self._store.get(name)) is not None:
                    yield obj

    def on_change(self, old: T | None, new: T | None) -> None:
        shown = new or old
        if shown is None or key(shown) not in self._left:
            self._handler(old, new)
        elif new is None:
            self._left.discard(key(shown))
