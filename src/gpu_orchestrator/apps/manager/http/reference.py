"""The reference of the HTTP API as Markdown, made from the server's own OpenAPI document."""

from collections.abc import Iterator
from typing import Any

from gpu_orchestrator.apps.manager.schema import PREFIX

METHODS = ("get", "post", "put", "delete")
HEAD = """# HTTP API

Made by `make api-docs` from the server's own OpenAPI document (`GET /openapi.json`); changes belong into
`src/gpu_orchestrator/apps/cluster`. Every path is there with and without the prefix `/api/v1`.

Send `Authorization: Bearer <key>`. *Needs* is the scope that a key must have; see
[security](../security.md). Every error is an `ErrorBody`; answers of 429 and 503 carry `Retry-After`. Every
answer carries `X-Correlation-ID`: the one you sent, or a new one, found again in all logs.

## Watching

`GET /events` (server-sent events) and `WS /ws` (one JSON object a message) tell the same events, each an
`Event`; both need `read`. A key sees the events of its owner's tasks and those that concern all; an admin
sees every one.

| event | when |
|---|---|
| `worker_registered`, `worker_status_changed` | a worker joins; its status or an operator's word changes |
| `task_started`, `task_requeued`, `task_completed`, `task_failed`, `task_cancelled` | each step of a task |
| `gpu_alert` | an alert is `raised` or `cleared`: see [operations](../operations.md) |
| `callback_failed` | a callback was given up |
| `reset` | events were lost to you, see below |

Every event has an `id`. Who was away resumes with `Last-Event-ID: <id>` (browsers do so by themselves) or
`?after=<id>` and sees every event once; `?after=0` begins with the oldest that is kept. About `EVENTS_KEPT`
events are kept. Who was away for longer, or names an id of a store that was emptied or restored, is sent a
`reset` first: look at everything anew. `GET /cluster/events` has the same events page by page.
"""


def markdown(document: dict[str, Any]) -> str:
    return "\n".join([HEAD, *_routes(document["paths"]), *_types(document["components"]["schemas"])]) + "\n"


def _routes(paths: dict[str, Any]) -> Iterator[str]:
    for tag in dict.fromkeys(_tag(each) for path in paths.values() for each in path.values()):
        yield f"## {tag.capitalize()}\n"
        for path, operations in paths.items():
            for method in METHODS:
                if method in operations and _tag(operations[method]) == tag:
                    yield from _route(method, path.removeprefix(PREFIX), operations[method])


def _tag(operation: dict[str, Any]) -> str:
    return str(operation.get("tags", ["other"])[0])


def _route(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n"
    if text := operation.get("description"):
        yield " ".join(text.split()) + "\n"
    body = operation.get("requestBody")
    answers = ", ".join(
        f"{status} {_content(answer)}"
        for status, answer in operation["responses"].items()
        if status != "default"
    )
    takes = f" Takes {_content(body)}." if body else ""
    yield f"Needs `{operation.get('x-needs', 'nothing')}`.{takes} Answers {answers}.\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | type | default |\n|---|---|---|---|"
        for each in parameters:
            schema = each["schema"]
            yield f"| `{each['name']}` | {each['in']} | {_type(schema)} | {_default(schema)} |"
        yield ""


def _content(part: dict[str, Any]) -> str:
    found = part.get("content", {}).get("application/json", {}).get("schema")
    return _type(found) if found else "nothing"


def _types(schemas: dict[str, Any]) -> Iterator[str]:
    yield "## Types\n"
    for name in sorted(schemas):
        schema = schemas[name]
        yield f"### {name}\n"
        if text := schema.get("description"):
            yield " ".join(text.split()) + "\n"
        if "properties" in schema:
            required = set(schema.get("required", ()))
            yield "| field | type | default |\n|---|---|---|"
            for field, kind in schema["properties"].items():
                default = "" if field in required else _default(kind)
                yield f"| `{field}` | {_type(kind)} | {'required' if field in required else default} |"
            yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(each) for each in choices)
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema.get('items', {}))}"
        case "object":
            return f"object of {_type(schema.get('additionalProperties') or {})}"
        case None:
            return "anything"
        case kind:
            return str(kind) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "minLength": "of {} characters or more",
        "maxLength": "of {} characters at most",
        "pattern": "like `{}`",
    }
    found = [text.format(schema[name]) for name, text in words.items() if name in schema]
    return "".join(f" {each}" for each in found).replace("|", "\\|")


def _default(schema: dict[str, Any]) -> str:
    return f"`{schema['default']!r}`" if "default" in schema and schema["default"] is not None else ""
