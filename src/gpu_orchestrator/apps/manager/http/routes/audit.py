"""Route that shows the audit log to admins. No route changes the log."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store.audit import Noted
from gpu_orchestrator.apps.manager.access import schema
from gpu_orchestrator.apps.manager.access.audit import Entry
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.views import when

router = APIRouter(tags=["audit"])
_entry = msgspec.json.Decoder(Entry)


@router.get("/audit", **described(schema.AuditPage, needs="admin"))
async def page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> Response:
    """List what was changed, newest first. For the next page set `before` to `next`, until that is null."""
    manager = manager_of(request)
    await manager.audit.flush()
    found = await manager.store.audit.page(before=before, limit=limit)
    entries = [_shown(each) for each in found.entries]
    following = entries[-1].number if len(entries) == limit else None
    return json_response(schema.AuditPage(entries=entries, total=found.total, next=following))


def _shown(noted: Noted) -> schema.AuditEntry:
    entry = _entry.decode(noted.text)
    return schema.AuditEntry(
        number=noted.number,
        time=when(entry.at_ms) or "",
        key_id=entry.key_id or None,
        owner=entry.owner or None,
        action=entry.action,
        object=entry.object,
        status=entry.status,
        outcome="done" if entry.status < 400 else "refused" if entry.status < 500 else "failed",
        correlation_id=entry.correlation_id,
        source=entry.source,
    )
