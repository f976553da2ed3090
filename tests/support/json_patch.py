"""Apply an RFC 6902 patch as the API server does: with the three operations that the webhook answers with."""

from copy import deepcopy
from typing import Any


def applied(patch: list[dict[str, Any]], value: Any) -> Any:
    """Return the value with all operations applied in order; raise if one does not fit."""
    whole = [deepcopy(value)]
    for each in patch:
        path: str = each["path"]
        *parents, last = ["0", *path.split("/")[1:]]
        target: Any = whole
        for name in parents:
            target = target[_place(target, name)]
        _apply(target, _place(target, last), each)
    return whole[0]


def _place(target: Any, name: str) -> Any:
    return int(name) if isinstance(target, list) else name.replace("~1", "/").replace("~0", "~")


def _apply(target: Any, place: Any, operation: dict[str, Any]) -> None:
    match operation["op"]:
        case "remove":
            del target[place]
        case "replace":
            target[place]  # it must be there
            target[place] = deepcopy(operation["value"])
        case "add" if isinstance(target, list):
            assert 0 <= place <= len(target)
            target.insert(place, deepcopy(operation["value"]))
        case "add":
            target[place] = deepcopy(operation["value"])
        case other:
            raise ValueError(f"the webhook does not use {other!r}")
