"""Equal strings of different objects become one string: a third of the memory of a store of pods.

A decoder makes a new string for each `"Running"` and `"node.kubernetes.io/not-ready"` it meets. `Watch`
passes each object through `share` before it keeps it. Name, UID and version, which differ anyway, stay out.
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


def share(obj: Object) -> None:
    """Replace the strings inside by equal ones already known. The object keeps its value."""
    if len(_known) > MOST:
        _known.clear()  # bounded; what matters comes back at once
    _share_struct(obj)


def _share_struct(obj: Any) -> None:
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
                    _share_struct(item)
        elif kind is dict:
            _share_values(value)
        elif isinstance(value, msgspec.Struct):
            _share_struct(value)


def _share_values(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if type(value) is str and len(value) <= LONGEST:
            values[name] = _known.setdefault(value, value)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Fields worth a look, with their defaults: what was left at its default is shared already."""
    skipped = UNIQUE if kind is ObjectMeta else ()
    found = msgspec.structs.fields(kind)
    return tuple((field.name, field.default) for field in found if field.name not in skipped)
