"""The reference of our three kinds as Markdown, made from the same schemas as their CRDs."""

import json
from collections.abc import Iterator

from gpu_orchestrator.api import crds
from gpu_orchestrator.api.crds import Kind
from gpu_orchestrator.api.schema import INT32, PRESERVE, Schema

HEAD = """# Custom resources

Made by `make crds` from `src/gpu_orchestrator/api`; changes belong there. `kubectl explain` says the same.
"""


def markdown() -> str:
    return "\n".join([HEAD, *(line for kind in crds.KINDS for line in _kind(kind))])


def _kind(kind: Kind) -> Iterator[str]:
    resource, whole = kind.resource, crds.object_schema(kind.resource.type)
    scope = "namespaced" if resource.namespaced else "cluster-scoped"
    yield f"## {resource.kind}\n"
    yield f"`{resource.api_version}`, {scope}, plural `{resource.plural}`, short `{kind.short_name}`. "
    yield f"{whole['description']}\n"
    yield f"Columns: {_columns(kind, wide=False)} (wide: {_columns(kind, wide=True)}).\n"
    for part in ("spec", "status"):
        yield f"### {resource.kind} {part}\n"
        yield f"{whole['properties'][part]['description']}\n"
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        yield from _rows(whole["properties"][part])
        yield ""
    yield from _rules(whole)


def _columns(kind: Kind, *, wide: bool) -> str:
    return ", ".join(column.name for column in kind.columns if column.wide is wide)


def _rows(schema: Schema, path: str = "") -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}{name}"
        must = name in schema.get("required", [])
        default = "required" if must else _default(field)
        yield f"| `{here}` | {_type(field)} | {default} | {field['description']} |"
        yield from _below(field, here)


def _below(field: Schema, path: str) -> Iterator[str]:
    if PRESERVE not in field:
        yield from _rows(field, f"{path}.")
    yield from _rows(field.get("items", {}), f"{path}[].")


def _default(field: Schema) -> str:
    """An object's default is that of its fields, which are listed below it."""
    default = field.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


def _type(field: Schema) -> str:
    match field:
        case {"enum": values}:
            return " ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"additionalProperties": values}:
            return f"map to {_type(values)}"
        case {"format": "date-time"}:
            return "time"
        case {"type": "integer"}:
            return f"integer{_range(field.get('minimum'), field.get('maximum'))}"
        case {"type": "string"}:
            return f"string{_range(field.get('minLength'), field.get('maxLength'))}"
        case {"type": kind}:
            return str(kind)
        case _:
            return "any"


def _range(lowest: int | None, highest: int | None) -> str:
    if highest is None or highest == INT32:
        return f" ≥ {lowest}" if lowest else ""
    return f" {lowest or 0}..{highest}"


def _rules(schema: Schema) -> Iterator[str]:
    messages = list(dict.fromkeys(_messages(schema)))
    if messages:
        yield "Rules:\n"
        yield from (f"- {message}" for message in messages)
        yield ""


def _messages(schema: Schema) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for field in schema.get("properties", {}).values():
        yield from _messages(field)
