"""A minimal server: it records its requests and streams the events that a test gives it."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.faults import certificates


@dataclass(slots=True)
class SmallServer:
    kubeconfig: Path
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        if "watch" in request.query:
            return await self._watch(request)
        return web.json_response({"echo": (await request.content.read()).decode(), "path": request.path_qs})

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while (event := await self.events.get()) is not None:
            await stream.write(json.dumps(event).encode() + b"\n")
        return stream


@contextlib.asynccontextmanager
async def small_server(folder: Path, token: str = "") -> AsyncIterator[SmallServer]:
    """Start a server. Its kubeconfig has this token, if any."""
    certificates.write(folder)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "proxy.crt", folder / "proxy.key")
    server = SmallServer(folder / "server.yaml")
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.kubeconfig.write_text(json.dumps(_kubeconfig(runner.addresses[0][1], folder / "ca.crt", token)))
    try:
        yield server
    finally:
        await runner.cleanup()


def _kubeconfig(port: int, ca_file: Path, token: str) -> dict[str, Any]:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca_file)}
    return {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
