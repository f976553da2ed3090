"""Routes that make and delete the secret that signs the callbacks of the key's owner."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access import schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.manager import Manager

router = APIRouter(tags=["callbacks"])


@router.post("/callbacks/secret", **described(schema.CallbackSecret, needs="submit", status=201))
async def make(request: Request) -> Response:
    """Make a secret that signs your owner's callbacks from now on. It is shown only once and replaces the
    previous one."""
    manager, owner = _manager_and_owner(request)
    secret = await manager.signing.make(owner)
    return json_response(schema.CallbackSecret(owner=owner, secret=secret), 201)


@router.delete("/callbacks/secret", **described(schema.CallbackSecretGone, needs="submit"))
async def forget(request: Request) -> Response:
    """Delete the secret. The server's own secret, if any, signs your owner's callbacks again."""
    manager, owner = _manager_and_owner(request)
    if not await manager.signing.forget(owner):
        raise errors.NotFound(f"{owner} has no secret for callbacks; make one with POST /callbacks/secret")
    return json_response(schema.CallbackSecretGone(owner=owner, status="removed"))


def _manager_and_owner(request: Request) -> tuple[Manager, str]:
    key: Key = request.state.key
    request.state.object = key.owner
    return manager_of(request), key.owner
