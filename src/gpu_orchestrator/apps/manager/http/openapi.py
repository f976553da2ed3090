"""What a route takes and gives, for OpenAPI, from the same types that are decoded and encoded."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_orchestrator.apps.manager import schema
from gpu_orchestrator.apps.manager.http import route_auth

PLACE = "#/components/schemas/{name}"
TYPES: dict[str, type] = {"ErrorBody": schema.ErrorBody}


def described(
    answer: type,
    *,
    needs: route_auth.Needs,
    status: int = 200,
    body: type | None = None,
    also: Mapping[int, type] | None = None,
    query: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Keyword arguments for a route's decorator. `needs` says who may use it; `also` are other good answers
    by their status; `query` is a parameter that the route reads by itself."""
    answers = {status: answer, **(also or {})}
    TYPES.update({each.__name__: each for each in answers.values()})
    responses: dict[str, Any] = {
        **{str(code): {"description": each.__name__, **_content(each)} for code, each in answers.items()},
        "default": {"description": "An error", **_content(schema.ErrorBody)},
    }
    extra: dict[str, Any] = {"responses": responses}
    if query is not None:
        extra["parameters"] = [query]
    if body is not None:
        TYPES[body.__name__] = body
        extra["requestBody"] = {"required": True, **_content(body)}
    extra["x-needs"] = needs
    return {
        "status_code": status,
        "response_model": None,
        "openapi_extra": extra,
        "dependencies": route_auth.needs(needs),
    }


def components() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(tuple(TYPES.values()), ref_template=PLACE)
    return found


def _content(kind: type) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": PLACE.format(name=kind.__name__)}}}}
