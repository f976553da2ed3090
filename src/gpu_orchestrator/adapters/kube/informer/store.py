"""The objects of a watch, by key and by index. Only `Watch` writes to it; handlers and controllers read it.

Each write returns its changes as (old, new) pairs: old is None for an added object, new is None for a deleted
one. An object that was deleted and created again under the same name is two changes, never one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from gpu_orchestrator.adapters.kube.informer.versions import is_newer_object
from gpu_orchestrator.api.wire import Object, key

T = TypeVar("T", bound=Object)

Change = tuple[T | None, T | None]
Index = Callable[[T], Iterable[str]]


class Store(Generic[T]):
    """`version` changes with the content."""

    def __init__(self, indices: Mapping[str, Index[T]] | None = None) -> None:
        self.version = 0
        self._objects: dict[str, T] = {}
        self._indices = dict(indices or {})
        self._found: dict[str, dict[str, dict[str, None]]] = {name: {} for name in self._indices}

    def get(self, name: str) -> T | None:
        """Return the object with this key: `namespace/name`, or `name` for a cluster-scoped kind."""
        return self._objects.get(name)

    def by(self, index: str, value: str) -> list[T]:
        """Return the objects for which the named index gives this value, in the order they arrived."""
        return [self._objects[name] for name in self._found[index].get(value, ())]

    def names(self) -> list[str]:
        """Return the keys of all objects, in the order they arrived."""
        return list(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def put(self, new: T) -> list[Change[T]]:
        name = key(new)
        old = self._objects.get(name)
        if old is None:
            self._set(name, None, new)
            return [(None, new)]
        if old.metadata.uid != new.metadata.uid:
            return [*self.drop(name), *self.put(new)]
        if not is_newer_object(new, old):
            return []  # a repeated or late event must not restore an old state
        self._set(name, old, new)
        return [(old, new)]

    def drop(self, name: str, uid: str = "") -> list[Change[T]]:
        """Remove an object; with `uid`, only if it still has that uid."""
        old = self._objects.get(name)
        if old is None or (uid and old.metadata.uid != uid):
            return []
        del self._objects[name]
        self.version += 1
        self._unindex(name, old)
        return [(old, None)]

    def replace(self, current: Mapping[str, T]) -> list[Change[T]]:
        """Replace the content with a complete list. Missing objects were deleted while the watch was
        down; their changes come first."""
        changes: list[Change[T]] = []
        for name in [name for name in self._objects if name not in current]:
            changes += self.drop(name)
        for obj in current.values():
            changes += self._overwrite(obj)
        return changes

    def _overwrite(self, new: T) -> list[Change[T]]:
        """Store a listed object even if its version is lower, as after the server's etcd was restored."""
        old = self._objects.get(key(new))
        if old is None or old.metadata.uid != new.metadata.uid:
            return self.put(new)
        if old.metadata.resource_version == new.metadata.resource_version:
            return []
        self._set(key(new), old, new)
        return [(old, new)]

    def _set(self, name: str, old: T | None, new: T) -> None:
        if old is not None:
            self._unindex(name, old)
        self._objects[name] = new
        self.version += 1
        for index, values in self._indices.items():
            for value in values(new):
                self._found[index].setdefault(value, {})[name] = None

    def _unindex(self, name: str, old: T) -> None:
        for index, values in self._indices.items():
            found = self._found[index]
            for value in values(old):
                held = found.get(value, {})
                held.pop(name, None)
                if not held:
                    found.pop(value, None)
