"""Our own writes, until the watch has caught up with them.

A cache lags behind: who decides by it alone may decide again what was just decided. So the server's answer to
a write is kept and shown in place of what the watch knows, as long as the watch is older than that answer.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api.wire import Object, key

T = TypeVar("T", bound=Object)


class Fresh(Generic[T]):
    """`version` is how far the watch that fills `store` has come."""

    def __init__(self, store: Store[T], version: Callable[[], str]) -> None:
        self._store, self._seen_up_to = store, version
        self._kept: dict[str, T] = {}

    def keep(self, answer: T) -> None:
        if _version(answer.metadata.resource_version) > _version(self._seen_up_to()):
            self._kept[key(answer)] = answer

    def get(self, name: str) -> T | None:
        return self._over(name, self._store.get(name))

    def by(self, index: str, value: str, names: list[str]) -> list[T]:
        """What the watch has under this index, and what was kept under these names."""
        found = {key(each): each for each in self._store.by(index, value)}
        seen = {name: self._over(name, found.get(name)) for name in (*found, *names)}
        return [each for each in seen.values() if each is not None]

    def _over(self, name: str, seen: T | None) -> T | None:
        kept = self._kept.get(name)
        if kept is None:
            return seen
        version = _version(kept.metadata.resource_version)
        if version <= _version(self._seen_up_to()):
            del self._kept[name]
            return seen
        return kept if seen is None or _version(seen.metadata.resource_version) < version else seen


def _version(text: str) -> int:
    return int(text) if text.isdecimal() else 0
