"""The small HTTP servers of a process: metrics on one address, probes on another.

An address is `host:port`; `:8080` means every interface, as Kubernetes components write it; `0` means none.
"""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

import prometheus_client
from prometheus_client import CollectorRegistry

from gpu_orchestrator.adapters import profile
from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.small_server import Answer, Handler, Request, SmallServer

Check = Callable[[], str]
"""Returns what is wrong; an empty string if nothing is."""

LONGEST_PROFILE_S = 60.0
REST = 9.0
"""Metrics are made again after this many times as long as that took, so that those who scrape without a pause
take a tenth of a core at most. Others get what was made last, which is some milliseconds old."""


class BadAddress(ValueError):
    pass


@asynccontextmanager
async def serve(address: str, routes: Mapping[str, Handler]) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port (0 if the address means none)."""
    host, port = parse_address(address)
    if port is None:
        yield 0
        return
    server = SmallServer(routes)
    try:
        yield await _listen(server, host, port)
    finally:
        await server.close()


async def _listen(server: SmallServer, host: str | None, port: int) -> int:
    try:
        return await server.start(host, port)
    except OSError as error:
        where = f"{host or 'every interface'} port {port}"
        raise BadAddress(
            f"cannot listen on {where}: {error.strerror}; give another address, or 0 for none"
        ) from error


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
    made, rested_at = b"", float("-inf")

    async def metrics(_: Request) -> Answer:
        nonlocal made, rested_at
        if elapsed_s() >= rested_at:
            before = time.thread_time()
            made = prometheus_client.generate_latest(registry)
            rested_at = elapsed_s() + REST * (time.thread_time() - before)
        return Answer(made, content_type=prometheus_client.CONTENT_TYPE_LATEST)

    return {"/metrics": metrics, "/debug/profile": _profile}


def probe_routes(*, live: Check, ready: Check) -> dict[str, Handler]:
    return {"/healthz": _probe(live), "/readyz": _probe(ready)}


def _probe(check: Check) -> Handler:
    async def probe(_: Request) -> Answer:
        wrong = check()
        return Answer(wrong or "ok", HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)

    return probe


async def _profile(request: Request) -> Answer:
    """Serve a profile to the same machine only, because stacks reveal a lot about a process."""
    if not request.address or not ipaddress.ip_address(request.address).is_loopback:
        return Answer("profiles are served to loopback only\n", HTTPStatus.FORBIDDEN)
    given = request.query.get("seconds", "5")
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= LONGEST_PROFILE_S:
        wrong = f"seconds={given}: give a number above 0 and up to 60\n"
        return Answer(wrong, HTTPStatus.BAD_REQUEST)
    return Answer(await asyncio.to_thread(profile.sample, seconds))
