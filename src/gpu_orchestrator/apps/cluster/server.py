"""A whole server: the address, the store (its own or a configured one), the manager and HTTP, in this order.

What fails, fails before anything after it was begun, and all before it is undone.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import uvicorn

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.database import Database, wait_until_up
from gpu_orchestrator.adapters.store.embedded import Embedded
from gpu_orchestrator.adapters.store.store import Store, Terms
from gpu_orchestrator.apps.cluster import app
from gpu_orchestrator.apps.cluster.keys import Keys
from gpu_orchestrator.apps.cluster.manager import Ground, Manager
from gpu_orchestrator.apps.cluster.terms import GRACE_PER_LEASE

STORE_WAIT_S = 5.0


class CannotListen(Exception):
    """The address is taken, or not ours."""


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    manager: Manager
    embedded: Embedded | None


@contextlib.asynccontextmanager
async def running(settings: Settings, keys: Keys, *, insecure: bool = False) -> AsyncIterator[Running]:
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(listen(settings.api_host, settings.api_port))
        embedded = await _embedded(settings, stack)
        url = embedded.url if embedded else settings.external_store
        database = Database(url, strict=settings.durability == "strict")
        stack.push_async_callback(database.close)
        await wait_until_up(database, STORE_WAIT_S)
        facts = await database.check(insecure=insecure)
        store = Store(database, owner=f"{socket.gethostname()}-{uuid4().hex[:8]}", terms=_terms(settings))
        manager = Manager(Ground(settings, store, facts, keys))
        await stack.enter_async_context(_serving(manager, listening))
        yield Running(_url(settings, listening), manager, embedded)


def listen(host: str, port: int) -> socket.socket:
    """Taken before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because event loops switch off Nagle's delay only where they know it is TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror}; set API_HOST or API_PORT to another"
        ) from error
    listening.setblocking(False)
    return listening


async def _embedded(settings: Settings, stack: contextlib.AsyncExitStack) -> Embedded | None:
    if settings.external_store:
        return None
    server = Embedded(Path(settings.data_dir) / "store")
    await server.start()
    stack.push_async_callback(server.stop)
    keeper = asyncio.get_running_loop().create_task(server.keep())
    stack.callback(keeper.cancel)
    return server


@contextlib.asynccontextmanager
async def _serving(manager: Manager, listening: socket.socket) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app.build(manager),
        http="httptools",
        ws="websockets-sansio",
        log_config=None,
        access_log=False,
        lifespan="off",
        ws_per_message_deflate=False,
        ws_max_size=64 * 1024 * 1024,
        timeout_graceful_shutdown=2,
        backlog=1024,
        server_header=False,
        date_header=False,
        proxy_headers=False,
    )
    server = _Server(config)
    await manager.start()
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        await manager.part()
        server.should_exit = True
        await serving
        await manager.stop()


class _Server(uvicorn.Server):
    """Signals are for whoever started us."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _terms(settings: Settings) -> Terms:
    lease_ms = int(settings.worker_lease * 1000)
    return Terms(
        lease_ms=lease_ms,
        grace_ms=int(lease_ms * GRACE_PER_LEASE),
        leader_ms=3000,
        keep_ms=int(settings.task_retention * 1000),
        most_workers=settings.max_workers,
    )


def _url(settings: Settings, listening: socket.socket) -> str:
    host = "127.0.0.1" if settings.api_host in ("0.0.0.0", "::") else settings.api_host  # noqa: S104
    return f"http://{host}:{listening.getsockname()[1]}"
