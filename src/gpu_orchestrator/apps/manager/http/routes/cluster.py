"""Routes for health, the state of the cluster, and metrics."""

from datetime import UTC, datetime
from time import monotonic
from typing import Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.store.history import RINGS
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.units import MIB, show_memory, show_seconds
from gpu_orchestrator.apps.manager import schema
from gpu_orchestrator.apps.manager.autoscale.schema import ScalingStatus
from gpu_orchestrator.apps.manager.errors import Unauthorized
from gpu_orchestrator.apps.manager.events import history
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of, needs, recognise
from gpu_orchestrator.apps.manager.manager import Manager

router = APIRouter(tags=["cluster"])
Timeframe = Literal["1h", "24h", "7d", "30d"]


@router.get("/health", **described(schema.Health, needs="nothing"))
async def health(request: Request) -> Response:
    """Report the health of this process and its dependencies, with status 200 even if unhealthy.

    Only callers with a key learn which process leads, and how many connections are open."""
    return json_response(await _health(request))


@router.get("/health/live", **described(schema.Health, needs="nothing"))
async def live(request: Request) -> Response:
    return json_response(_body("healthy", {}))


@router.get("/health/ready", **described(schema.Health, needs="nothing"))
async def ready(request: Request) -> Response:
    """Return 503 if the store does not answer or no process leads."""
    found = await _health(request)
    return json_response(found, 200 if found.status != "unhealthy" else 503)


@router.get("/cluster/status", **described(schema.ClusterStatus, needs="read"))
async def status(request: Request) -> Response:
    manager = manager_of(request)
    overview = manager.overview
    await overview.refresh(at_most_old_s=0.0)
    totals, counts, total = overview.totals, overview.counts, overview.totals.memory_mib
    free = overview.free_mib(await manager.cluster())
    uptime = monotonic() - manager.started
    states = counts.states if counts else {}
    return json_response(
        schema.ClusterStatus(
            cluster_id=manager.store.database.prefix.strip("{}:"),
            status="healthy" if totals.online else "no workers",
            total_workers=len(overview.workers),
            active_workers=totals.online,
            queued_tasks=states.get("queued", 0),
            running_tasks=states.get("assigned", 0) + states.get("running", 0),
            gpu_utilization=round(totals.utilization, 3),
            total_memory=show_memory(total),
            total_memory_bytes=total * MIB,
            available_memory=show_memory(free),
            available_memory_bytes=free * MIB,
            memory_threshold=manager.memory.threshold,
            uptime=show_seconds(uptime),
            uptime_seconds=round(uptime, 1),
            leader=counts.leader if counts else "",
            tasks=states,
            committed=counts.stats.get("completed", 0) if counts else 0,
        )
    )


@router.get("/cluster/scaling", **described(ScalingStatus, needs="read"))
async def scaling(request: Request) -> Response:
    """Return how many workers the autoscaler wants, and why."""
    return json_response(await manager_of(request).scaler.status())


@router.get("/cluster/metrics", **described(schema.MetricsHistory, needs="read"))
async def metrics_history(request: Request, timeframe: Timeframe = "1h") -> Response:
    """Return the history of the cluster over the last hour, day, week or month."""
    ring = RINGS[timeframe]
    return json_response(history.body(ring, await manager_of(request).store.history.read(ring)))


@router.get("/metrics", include_in_schema=False, dependencies=needs("metrics"))
async def metrics(request: Request) -> Response:
    body = await manager_of(request).scrape.text()
    return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _health(request: Request) -> schema.Health:
    manager = manager_of(request)
    missing = await manager.readiness.ready()
    weak = manager.readiness.weakness()
    store = missing or (f"weak: {weak}" if weak else "ok")
    disk, results, retention = (
        manager.readiness.disk_shortage(),
        manager.results.trouble,
        manager.retention.forgetting,
    )
    broker = manager.publisher.trouble if manager.publisher else ""
    troubles = (weak, disk, results, retention, broker)
    status = "unhealthy" if missing else "degraded" if any(troubles) else "healthy"
    parts = {"store": store, "leader": "ok" if manager.leader.leader else "none"}
    if manager.embedded or disk:
        parts["disk"] = disk or "ok"
    if results:
        parts["results"] = results
    if retention:
        parts["retention"] = f"ended tasks are forgotten early: {retention}"
    if manager.publisher:
        parts["broker"] = broker or "ok"
    if manager.siblings:
        parts["process"] = str(manager.siblings)
    return _body(status, parts | (_for_keys(manager) if _has_key(request, manager) else {}))


def _has_key(request: Request, manager: Manager) -> bool:
    try:
        manager.keys.find(header(request.scope, b"authorization"))
    except Unauthorized:
        return False
    recognise(request.scope)
    return True


def _for_keys(manager: Manager) -> dict[str, str]:
    """Return what only callers with a key learn: names of machines, and how much room there is."""
    connections = manager.connections
    number, limits = connections.known + connections.strangers, connections.limits
    fewer = manager.settings.max_connections > limits.most
    why = f" (MAX_CONNECTIONS is {manager.settings.max_connections}; raise the limit on open files)"
    room = f"{number} of {limits.most}{why if fewer else ''}"
    return {"leader": manager.leader.leader or "none", "connections": room}


def _body(status: str, dependencies: dict[str, str]) -> schema.Health:
    now = timestamps.milliseconds(datetime.now(UTC))
    return schema.Health(status=status, timestamp=now, version=__version__, dependencies=dependencies)
