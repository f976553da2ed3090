"""What a route takes and gives, for OpenAPI, from the same types that are decoded and encoded."""

from typing import Any

import msgspec

from gpu_orchestrator.apps.cluster import schema

PLACE = "#/components/schemas/{name}"
_types: dict[str, type] = {"ErrorBody": schema.ErrorBody}


def described(answer: type, *, status: int = 200, body: type | None = None) -> dict[str, Any]:
    """Keyword arguments for a route's decorator."""
    _types[answer.__name__] = answer
    responses: dict[int | str, Any] = {
        status: {"description": answer.__name__, **_content(answer)},
        "default": {"description": "An error", **_content(schema.ErrorBody)},
    }
    extra: dict[str, Any] = {"responses": {str(code): value for code, value in responses.items()}}
    if body is not None:
        _types[body.__name__] = body
        extra["requestBody"] = {"required": True, **_content(body)}
    return {"status_code": status, "response_model": None, "openapi_extra": extra}


def components() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(tuple(_types.values()), ref_template=PLACE)
    return found


def _content(kind: type) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": PLACE.format(name=kind.__name__)}}}}
