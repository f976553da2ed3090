"""Let equal strings of different objects share one string: a store of pods shrinks by a third or more.

The decoder makes a new string for each `"Running"` and `"node.kubernetes.io/not-ready"`. `Watch` calls
`intern_strings` on each object before it stores it. Name, UID and version are left out: they differ anyway.
"""

from functools import cache
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from gpu_orchestrator.api.wire import Object, ObjectMeta

LONGEST = 64
MOST = 16_384
UNIQUE = frozenset({"name", "uid", "resource_version"})

_known: dict[str, str] = {}


def intern_strings(obj: Object) -> None:
    """Replace the strings inside by equal strings of earlier objects. The object keeps its value."""
    if len(_known) > MOST:
        _known.clear()  # keep it bounded; common strings come back at once
    _intern_struct(obj)


def _intern_struct(obj: Any) -> None:
    for name, default in _fields(obj.__class__):
        value = getattr(obj, name)
        if value is default or not value:
            continue
        kind = type(value)
        if kind is str:
            known = _known.setdefault(value, value) if len(value) <= LONGEST else value
            if known is not value:
                force_setattr(obj, name, known)
        elif kind is list:
            for item in value:
                if isinstance(item, msgspec.Struct):
                    _intern_struct(item)
        elif kind is dict:
            _intern_values(value)
        elif isinstance(value, msgspec.Struct):
            _intern_struct(value)


def _intern_values(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if type(value) is str and len(value) <= LONGEST:
            values[name] = _known.setdefault(value, value)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields to intern, with their defaults: a field at its default is shared already."""
    skipped = UNIQUE if kind is ObjectMeta else ()
    found = msgspec.structs.fields(kind)
    return tuple((field.name, field.default) for field in found if field.name not in skipped)
