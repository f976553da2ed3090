"""Build escaped paths with queries for `Client` and `Watch`. A name cannot lead to another path."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from gpu_orchestrator.api.wire import Resource


def target(
    resource: Resource[Any],
    name: str,
    namespace: str = "",
    subresource: str = "",
    query: Mapping[str, Any] | None = None,
) -> str:
    """Return the path of one object. A name cannot lead to another path, even if a user chose it."""
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.kind} {name!r} is namespaced, but no namespace was given; pass one")
    path = resource.path(_segment(namespace) if namespace else "", _segment(name), subresource)
    return path + _query(query) if query else path


def collection(resource: Resource[Any], namespace: str = "", query: Mapping[str, Any] | None = None) -> str:
    """Return the path of all objects of a kind, in one namespace or in all."""
    return resource.path(_segment(namespace) if namespace else "") + _query(query or {})


def _segment(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "%" in name:
        raise ValueError(f"{name!r} is not a valid object name; give the name of one object")
    return quote(name, safe=":")


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"?{urlencode(given)}" if given else ""
