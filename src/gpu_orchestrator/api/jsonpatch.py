"""The difference of two JSON values as an RFC 6902 patch, in the operations that a webhook may answer with.

The two values are expected to share what is equal, as a changed copy does: what is the same object is not
looked into, so a patch costs what was changed and not what was sent.
"""

from collections.abc import Iterator
from typing import Any

from gpu_orchestrator.api.wire import Json

MOST_ITEMS = 32
"""Of a list that are removed and added one by one. Each moves the rest of the list, so a list of 100,000
variables would keep the API server busy for minutes: a list with more changes is replaced as a whole."""


def patch(before: Any, after: Any, path: str = "") -> list[Json]:
    """Return the operations that make `after` of `before`."""
    return list(_changes(before, after, path))


def _changes(before: Any, after: Any, path: str) -> Iterator[Json]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif before != after or type(before) is not type(after):
        yield {"op": "replace", "path": path, "value": after}


def _of_maps(before: Json, after: Json, path: str) -> Iterator[Json]:
    for name in before:
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
    for name, value in after.items():
        where = f"{path}/{_escaped(name)}"
        if name in before:
            yield from _changes(before[name], value, where)
        else:
            yield {"op": "add", "path": where, "value": value}


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Json]:
    if len(before) == len(after):
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes(old, new, f"{path}/{at}")
        return
    start = _equal_items(before, after)
    rest = min(len(before), len(after)) - start
    end = min(rest, _equal_items(before[::-1], after[::-1]))
    removed, added = len(before) - start - end, len(after) - start - end
    if removed + added > MOST_ITEMS:
        yield {"op": "replace", "path": path, "value": after}
        return
    for at in range(start + removed - 1, start - 1, -1):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for at in range(start, start + added):
        yield {"op": "add", "path": f"{path}/{at}", "value": after[at]}


def _equal_items(before: list[Any], after: list[Any]) -> int:
    """Return how many items the two lists have in common at their beginning."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and old != new:
            break
        count += 1
    return count


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
