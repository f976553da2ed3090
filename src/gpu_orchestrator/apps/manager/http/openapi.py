"""Describe routes for OpenAPI with the types that they decode and encode. The routes call `described`; the
pages of the API reference are made from `document`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gpu_orchestrator.apps.manager import schema
from gpu_orchestrator.apps.manager.http import route_auth

JSON = "application/json"
REF = "#/components/schemas/{name}"
TYPES: dict[str, type] = {"ErrorBody": schema.ErrorBody}


def described(
    answer: type,
    *,
    needs: route_auth.Needs,
    status: int = 200,
    body: type | None = None,
    also: Mapping[int, type] | None = None,
    query: Mapping[str, Any] | None = None,
    media_type: str = JSON,
    error: type = schema.ErrorBody,
) -> dict[str, Any]:
    """Return the keyword arguments for a route's decorator.

    `needs` is the scope that a key must have. `also` are other successful answers by status. `query` is a
    parameter that the route parses itself. `media_type` is that of the answers. `error` is the shape of
    errors.
    """
    answers = {status: answer, **(also or {})}
    TYPES.update({each.__name__: each for each in (*answers.values(), error)})
    responses: dict[str, Any] = {
        **{
            str(code): {"description": each.__name__, **_content(each, media_type)}
            for code, each in answers.items()
        },
        "default": {"description": "An error", **_content(error)},
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


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the application."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # `default` documents the one shape of our errors
    found["components"] = {
        "schemas": components(),
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    found["security"] = [{"key": []}]
    return found


def components() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(tuple(TYPES.values()), ref_template=REF)
    return found


def _content(kind: type, media_type: str = JSON) -> dict[str, Any]:
    return {"content": {media_type: {"schema": {"$ref": REF.format(name=kind.__name__)}}}}
