"""The small HTTP servers of a process: metrics on one address, probes on another.

An address is `host:port`; `:8080` means every interface, as Kubernetes components write it; `0` means none.
"""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry

from gpu_orchestrator.adapters import profile

Check = Callable[[], str]
"""Returns what is wrong; an empty string if nothing is."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LONGEST_PROFILE_S = 60.0


class BadAddress(ValueError):
    pass


@asynccontextmanager
async def serve(address: str, routes: Mapping[str, Handler]) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port (0 if the address means none)."""
    host, port = parse_address(address)
    if port is None:
        yield 0
        return
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await _listen(runner, host, port)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str | None, port: int) -> int:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        where = f"{host or 'every interface'} port {port}"
        raise BadAddress(
            f"cannot listen on {where}: {error.strerror}; give another address, or 0 for none"
        ) from error
    return int(runner.addresses[0][1])


def parse_address(address: str) -> tuple[str | None, int | None]:
    """Return `(host, port)`; host None is every interface, port None means no server."""
    if address == "0":
        return None, None
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65_535:
        raise BadAddress(
            f"'{address}' is not an address; write host:port such as 127.0.0.1:8080, or 0 for none"
        )
    return host.strip("[]") or None, int(port)


def metrics_routes(registry: CollectorRegistry) -> dict[str, Handler]:
    async def metrics(_: web.Request) -> web.Response:
        body = prometheus_client.generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

    return {"/metrics": metrics, "/debug/profile": _profile}


def probe_routes(*, live: Check, ready: Check) -> dict[str, Handler]:
    return {"/healthz": _probe(live), "/readyz": _probe(ready)}


def _probe(check: Check) -> Handler:
    async def probe(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    return probe


async def _profile(request: web.Request) -> web.Response:
    """Serve a profile to the same machine only, because stacks reveal a lot about a process."""
    if not request.remote or not ipaddress.ip_address(request.remote).is_loopback:
        return web.Response(text="profiles are served to loopback only\n", status=403)
    try:
        seconds = float(request.query.get("seconds", "5"))
    except ValueError:
        seconds = -1
    if not 0 < seconds <= LONGEST_PROFILE_S:
        given = request.query["seconds"]
        return web.Response(text=f"seconds={given}: give a number above 0 and up to 60\n", status=400)
    return web.Response(text=await asyncio.to_thread(profile.sample, seconds))
