"""Routes that create, list and revoke keys, and show the limits of one.

The secret of a key is in the response that creates it and nowhere else.
"""

from secrets import token_hex
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store.keys import KeyRow
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access import keys, limits, schema
from gpu_orchestrator.apps.manager.access.keys import SCOPES, Key
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.views import when

router = APIRouter(tags=["keys"])


@router.post("/keys", **described(schema.KeyMade, needs="admin", status=201, body=schema.KeyRequest))
async def create(request: Request) -> Response:
    """Create a key. Its secret is shown only once."""
    manager = manager_of(request)
    wanted = await read(request, schema.KeyRequest)
    secret = keys.make()
    row = _row(wanted, secret, by=request.state.key, now_ms=manager.keys.now_ms())
    if await manager.store.keys.save(row) == "full":
        raise errors.Conflict(f"there are {manager.store.keys.most} keys already; revoke some")
    made = await _look_up(manager, row.id)
    request.state.object = made.id
    return json_response(schema.KeyMade(**_fields(manager, made), key=secret), 201)


@router.get("/keys", **described(schema.KeyPage, needs="admin"))
async def page(
    request: Request,
    owner: Annotated[str, Query(max_length=63)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List all keys without their secrets: those from the settings first, then oldest first."""
    manager = manager_of(request)
    found = [key for key in await manager.key_sync.all() if owner in ("", key.owner)]
    shown = [schema.KeyInfo(**_fields(manager, key)) for key in found[offset : offset + limit]]
    return json_response(schema.KeyPage(keys=shown, total=len(found), limit=limit, offset=offset))


@router.get("/limits", **described(schema.MyLimits, needs="read"))
async def my_limits(request: Request) -> Response:
    """Return the limits of the key that you send, and what the key and its owner use of them now."""
    manager, key = manager_of(request), request.state.key
    may, usage = manager.quotas.of_key(key), await manager.usage(key.owner)
    minute, hour = manager.rate_limiter.used(key)
    share = schema.Share
    answer = schema.MyLimits(
        key_id=key.id,
        owner=key.owner,
        requests_per_minute=share(most=may.per_minute, used=minute),
        requests_per_hour=share(most=may.per_hour, used=hour),
        queued_tasks=share(most=may.queued, used=usage.queued),
        running_tasks=share(most=may.running, used=usage.active),
        gpu_seconds_per_day=share(most=may.gpu_seconds, used=usage.used_s().get(key.owner, 0.0)),
        weight=may.weight,
        day_left_seconds=usage.day_left_ms / 1000,
        held_back=manager.quotas.held_back(key.owner, usage.active),
    )
    return json_response(answer)


@router.delete("/keys/{key_id}", **described(schema.KeyInfo, needs="admin"))
async def revoke(request: Request, key_id: str) -> Response:
    """Revoke a key permanently. Every process refuses it within a second and closes its connections."""
    manager = manager_of(request)
    if any(key_id == key.id for key in manager.keys.configured):
        raise errors.Conflict(
            f"key {key_id} comes from the settings; change API_KEY or the worker token and restart the server"
        )
    if not await manager.store.keys.revoke(key_id):
        raise errors.NotFound(f"there is no key {key_id}")
    return json_response(schema.KeyInfo(**_fields(manager, await _look_up(manager, key_id))))


async def _look_up(manager: Manager, key_id: str) -> Key:
    """Return a key that was just changed, after this process has loaded the change."""
    await manager.key_sync.refresh()
    return next(key for key in await manager.key_sync.all() if key.id == key_id)


def _row(wanted: schema.KeyRequest, secret: str, *, by: Key, now_ms: int) -> KeyRow:
    return KeyRow(
        id=token_hex(8),
        digest=keys.digest_of(secret).hex(),
        name=wanted.name,
        owner=wanted.owner or wanted.name,
        scopes=",".join(each for each in SCOPES if each in wanted.scopes),
        expires_ms=now_ms + max(int(wanted.expires_in * 1000), 1) if wanted.expires_in else 0,
        by=by.id,
        limits=limits.encode(wanted.limits),
        worker=_worker(wanted),
    )


def _worker(wanted: schema.KeyRequest) -> str:
    """Return the worker that a key is for, as it is stored."""
    if wanted.worker is not None and "worker" not in wanted.scopes:
        raise errors.Unprocessable(
            "`worker` is for keys of scope worker; add that scope, or leave `worker` out"
        )
    if "worker" in wanted.scopes and "admin" not in wanted.scopes:
        return wanted.worker or ""
    return wanted.worker or "*"


def _fields(manager: Manager, key: Key) -> dict[str, Any]:
    over = "revoked" if key.revoked_ms else "expired"
    return {
        "key_id": key.id,
        "name": key.name,
        "owner": key.owner,
        "scopes": [each for each in SCOPES if each in key.scopes],
        "status": over if key.is_over(manager.keys.now_ms()) else "active",
        "limits": key.limits,
        "effective_limits": limits.shown(manager.quotas.of_key(key)),
        "configured": key.configured,
        "worker": (key.worker or None) if key.may("worker") else None,
        "created_at": when(key.created_ms),
        "expires_at": when(key.expires_ms),
        "revoked_at": when(key.revoked_ms),
        "last_used_at": when(key.used_ms),
    }
