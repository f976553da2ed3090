"""Read verb, resource and name of a request, in the words of RBAC, from its method, path and body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
NAMESPACE_SUBRESOURCES = {"status", "finalize"}


@dataclass(frozen=True, slots=True)
class Call:
    """`resource` includes the subresource (`pods/binding`); for other paths it is the path."""

    verb: str
    resource: str
    name: str = ""
    namespace: str = ""
    group: str = ""


def read(method: str, path: str, query: Mapping[str, str], body: bytes = b"") -> Call:
    parts = [unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", _, *rest] if rest:
            return _resource(method, "", rest, query, body)
        case ["apis", group, _, *rest] if rest:
            return _resource(method, group, rest, query, body)
        case _:
            return Call(method.lower(), path)


def _resource(method: str, group: str, parts: list[str], query: Mapping[str, str], body: bytes) -> Call:
    namespace, plural, name, subresource = _split(parts)
    verb = _verb(method, bool(name), query)
    if not name:
        name = _name_in(body) if verb == "create" else _selected_name(query)
    resource = f"{plural}/{subresource}" if subresource else plural
    return Call(verb, resource, name, namespace, group)


def _split(parts: list[str]) -> tuple[str, str, str, str]:
    """Return namespace, plural, name and subresource. A namespace is itself a resource with subresources."""
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in NAMESPACE_SUBRESOURCES:
        namespace, rest = parts[1], parts[2:]
    else:
        namespace, rest = "", parts
    plural, name, *subresource = [*rest, ""] if len(rest) == 1 else rest
    return namespace, plural, name, "/".join(subresource)


def _verb(method: str, has_name: bool, query: Mapping[str, str]) -> str:
    if method == "GET":
        if query.get("watch", "").lower() in {"1", "true"}:
            return "watch"
        return "get" if has_name else "list"
    if method == "DELETE":
        return "delete" if has_name else "deletecollection"
    return VERBS.get(method, method.lower())


def _name_in(body: bytes) -> str:
    """Return the new object's name or generateName; empty for a protobuf body."""
    try:
        metadata = json.loads(body)["metadata"]
        return str(metadata.get("name") or metadata.get("generateName") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _selected_name(query: Mapping[str, str]) -> str:
    for term in query.get("fieldSelector", "").split(","):
        key, _, value = term.partition("=")
        if key == "metadata.name":
            return value.removeprefix("=")
    return ""
