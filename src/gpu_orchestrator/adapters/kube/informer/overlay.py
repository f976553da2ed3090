"""Our own writes on top of the live copy of a watch, until the watch has caught up.

A watch lags behind: a caller that reads only the watch may repeat a write that it has just made. So callers
`keep` the server's answer to each write, and readers get it until the watch has reached its version.
"""

from typing import Generic, Protocol, TypeVar

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.informer.versions import is_newer, is_newer_object
from gpu_orchestrator.api.wire import Object, key

T = TypeVar("T", bound=Object)


class Watched(Protocol[T]):
    """The part of `Watch` that an overlay reads: the live copy and its resourceVersion."""

    @property
    def store(self) -> Store[T]: ...

    @property
    def resource_version(self) -> str: ...


class Overlay(Generic[T]):
    def __init__(self, watch: Watched[T]) -> None:
        self._watch = watch
        self._kept: dict[str, T] = {}

    def keep(self, written: T) -> None:
        """Store the server's answer to our write, unless the watch has passed it already."""
        if self._is_ahead(written):
            self._kept[key(written)] = written

    def forget(self, name: str) -> None:
        """Drop our write, for instance before we delete the object."""
        self._kept.pop(name, None)

    def get(self, name: str) -> T | None:
        """Return the newest state of this key: our write or the watch's."""
        return self._over(name, self._watch.store.get(name))

    def by(self, index: str, value: str, names: list[str]) -> list[T]:
        """Return the objects that the watch has under this index value, and our writes under these names."""
        found = {key(each): each for each in self._watch.store.by(index, value)}
        seen = {name: self._over(name, found.get(name)) for name in (*found, *names)}
        return [each for each in seen.values() if each is not None]

    def observe(self, old: T | None, new: T | None) -> None:
        """Drop our write if the watch has caught up with it. Register this with `Watch.on_change` if an
        object may never be read again after its deletion, or our write would stay."""
        shown = new or old
        kept = self._kept.get(key(shown)) if shown else None
        if shown is None or kept is None:
            return
        is_gone = new is None and kept.metadata.uid == shown.metadata.uid
        if is_gone or not is_newer_object(kept, shown):
            del self._kept[key(kept)]

    def _over(self, name: str, seen: T | None) -> T | None:
        kept = self._kept.get(name)
        if kept is None:
            return seen
        if not self._is_ahead(kept):
            del self._kept[name]
            return seen
        return kept if seen is None or is_newer_object(kept, seen) else seen

    def _is_ahead(self, written: T) -> bool:
        return is_newer(written.metadata.resource_version, self._watch.resource_version)
