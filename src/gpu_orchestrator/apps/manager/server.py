"""Start a whole server: listening socket, store (embedded or configured), manager and HTTP, in this order.

If a step fails, no later step starts and the earlier ones are undone. The CLI calls `running`.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import structlog
import uvicorn

from gpu_orchestrator.adapters import open_files
from gpu_orchestrator.adapters.broker.address import Broker, broker_of
from gpu_orchestrator.adapters.certificate_files import CertificateFiles
from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.adapters.store.records import Breaker
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey import migrations
from gpu_orchestrator.adapters.store.valkey.database import Database, wait_until_up
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded, most_bytes_for
from gpu_orchestrator.adapters.uvicorn_server import Server
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.access.connections import ConnectionLimits, Connections
from gpu_orchestrator.apps.manager.access.keys import Keys
from gpu_orchestrator.apps.manager.events.signing import Signing
from gpu_orchestrator.apps.manager.http import app
from gpu_orchestrator.apps.manager.http.guarded_protocol import GuardedHttpProtocol, GuardedWebSocketProtocol
from gpu_orchestrator.apps.manager.manager import Manager, ManagerDeps
from gpu_orchestrator.apps.manager.siblings import ParentsStore, Place
from gpu_orchestrator.apps.manager.workers.session_config import GRACE_PER_LEASE

log = structlog.get_logger()

FEWEST_TASKS, LONGEST_PAUSE_S = 5, 600.0
"""Of a worker's circuit: how many tasks must have ended in the window, and how long it rests at most."""
Tell = Callable[[str], None] | None
"""Hears what a start waits for."""
STORE_WAIT_S = 5.0
CLEAR_TEXT = "set SSL_CERT_PATH and SSL_KEY_PATH, or put a proxy with TLS in front of the server"


class CannotListen(Exception):
    """The address is in use, or does not belong to this machine."""


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    manager: Manager
    embedded: Embedded | None
    in_clear: bool = False
    """Whether other machines can connect without TLS."""


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    keys: Keys,
    *,
    insecure: bool = False,
    listening: socket.socket | None = None,
    place: Place | None = None,
    callback_secret: str = "",
    tell: Tell = None,
) -> AsyncIterator[Running]:
    """Run a server, on the socket `listening` if the caller has opened it already. `place`: it is one of
    several processes, whose parent has the store. `callback_secret` is proposed to the other servers of the
    store if none is configured; `tell` hears what the start waits for."""
    async with contextlib.AsyncExitStack() as stack:
        certificate = (
            CertificateFiles(settings.ssl_cert_path, settings.ssl_key_path)
            if settings.ssl_cert_path
            else None
        )
        listening = listening or stack.enter_context(listen(settings.api_host, settings.api_port))
        embedded = None if place else await _embedded(settings, stack, tell)
        url = place.store if place else embedded.url if embedded else settings.external_store
        broker = _broker(settings, url)
        database = _database(settings, url)
        stack.push_async_callback(database.close)
        await wait_until_up(database, STORE_WAIT_S, tell)
        facts = await database.check(insecure=insecure)
        await migrations.prepare(database, keys.version_1_owners())
        store = Store(
            database, owner=f"{socket.gethostname()}-{uuid4().hex[:8]}", timeouts=_timeouts(settings)
        )
        manager = Manager(
            ManagerDeps(
                settings,
                store,
                facts,
                keys,
                Seal.of(settings),
                Connections(_connection_limits(settings)),
                embedded or _parents(place),
                place,
                callback_secret,
                broker,
            )
        )
        await manager.signing.agree()
        if manager.siblings is not None:
            await stack.enter_async_context(manager.siblings.answering())
        await stack.enter_async_context(_serving(manager, listening, certificate))
        in_clear = certificate is None and not _is_loopback(listening)
        if in_clear:
            log.warning("keys travel in clear", address=settings.api_host, advice=CLEAR_TEXT)
        yield Running(url_of(settings, listening), manager, embedded, in_clear)


def _broker(settings: Settings, store: str) -> Broker | None:
    """Return Celery's broker if it carries tasks to workers."""
    if settings.executor != "celery":
        return None
    if find_spec("celery") is None:
        raise BadSettings("EXECUTOR=celery needs Celery: pip install 'gpu-orchestrator[manager,celery]'")
    return broker_of(settings, store)


def _parents(place: Place | None) -> ParentsStore | None:
    return ParentsStore(Path(place.store_folder)) if place and place.store_folder else None


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the store is; `folder` is empty if it is not an embedded one."""

    url: str
    folder: str = ""


def _database(settings: Settings, url: str) -> Database:
    return Database(url, strict=settings.durability == "strict", replicas=settings.durability_replicas)


async def agreed_secret(settings: Settings, url: str, proposed: str) -> str:
    """Return the secret that signs callbacks: the configured one, or the one that the servers of this store
    have in common."""
    async with Database(url) as database:
        signing = Signing.of(settings, database, Seal.of(settings), proposed)
        await wait_until_up(database, STORE_WAIT_S)
        await signing.agree()
        return signing.common


async def store_of(settings: Settings, stack: contextlib.AsyncExitStack) -> StoreAddress:
    """Return the store of these settings; start the embedded one if none is configured."""
    embedded = await _embedded(settings, stack, None)
    if embedded is None:
        return StoreAddress(settings.external_store)
    return StoreAddress(embedded.url, str(embedded.folder))


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. The server does this before it starts anything else."""
    listening = bind(host, port, shared=False)
    try:
        listening.listen(1024)
    except OSError as error:  # another socket bound the port before, without listening
        listening.close()
        raise _cannot(host, port, error) from error
    return listening


def bind(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """Open a socket that does not listen yet. `shared`: several sockets of this user may have the port, and
    the kernel spreads connections over those that listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Name the protocol: event loops disable Nagle's algorithm only on sockets that they know to be TCP.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        opened.bind((host, port))
    except (OSError, UnicodeError) as error:
        opened.close()
        raise _cannot(host, port, error) from error
    opened.setblocking(False)
    return opened


def _cannot(host: str, port: int, error: Exception) -> CannotListen:
    why = getattr(error, "strerror", None) or error
    return CannotListen(f"cannot listen on {host}:{port}: {why}; {_advice(error)}")


def _advice(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == EADDRINUSE:
        return 'choose another port with --port 9000 (with make: ARGS="--port 9000") or API_PORT'
    if isinstance(error, OSError) and error.errno == EACCES:
        return "choose a port above 1023 with --port or API_PORT"
    return "choose an address of this machine with --host or API_HOST"


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


async def _embedded(settings: Settings, stack: contextlib.AsyncExitStack, tell: Tell) -> Embedded | None:
    if settings.external_store:
        return None
    most_bytes = most_bytes_for(int(settings.max_store_mb * MIB)) if settings.max_store_mb else 0
    server = Embedded(Path(settings.data_dir) / "store", most_bytes)
    stack.push_async_callback(server.stop)
    await server.start(tell)
    keeper = asyncio.get_running_loop().create_task(server.keep())
    stack.callback(keeper.cancel)
    return server


@contextlib.asynccontextmanager
async def _serving(
    manager: Manager, listening: socket.socket, certificate: CertificateFiles | None
) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app.build(manager),
        http=partial(GuardedHttpProtocol, manager.connections),  # type: ignore[arg-type]
        ws=GuardedWebSocketProtocol,
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
    config.load()
    config.ssl = certificate.ssl if certificate else None
    server = Server(config)
    await manager.start()
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
    beside = [asyncio.get_running_loop().create_task(_close_overdue(manager.connections))]
    if certificate is not None:
        beside.append(asyncio.get_running_loop().create_task(certificate.keep()))
    try:
        yield
    finally:
        for each in beside:
            each.cancel()
        await manager.scaler.close()
        await manager.disconnect_clients()
        server.should_exit = True
        await serving
        await manager.stop()


async def _close_overdue(connections: Connections) -> None:
    """Refuse requests that come too slowly, every second."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(1.0)
        try:
            connections.close_overdue(loop.time())
        except Exception:
            log.exception("requests that come too slowly could not be refused")


def _connection_limits(settings: Settings) -> ConnectionLimits:
    files = open_files.raise_limit()
    limits = ConnectionLimits.of(settings, files)
    log.info("connections are limited", most=limits.most, strangers=limits.strangers, open_files=files)
    if limits.most < settings.max_connections:
        log.warning(
            "fewer connections than configured, for this process may open few files",
            most=limits.most,
            max_connections=settings.max_connections,
            open_files=files,
            advice="raise the hard limit: LimitNOFILE= of systemd, --ulimit nofile= of Docker, ulimit -Hn",
        )
    return limits


def _timeouts(settings: Settings) -> StoreTimeouts:
    lease_ms = int(settings.worker_lease * 1000)
    return StoreTimeouts(
        lease_ms=lease_ms,
        grace_ms=int(lease_ms * GRACE_PER_LEASE),
        hold_ms=int(max(settings.restart_grace, settings.worker_lease) * 1000),
        leader_ms=3000,
        keep_ms=int(settings.task_retention * 1000),
        worker_keep_ms=int(settings.worker_retention * 1000),
        most_workers=settings.max_workers,
        audit_entries=settings.audit_keep,
        log_bytes=settings.task_log_kb * 1024,
        values_bytes=settings.task_values_kb * 1024,
        breaker=Breaker(
            int(settings.circuit_window * 1000),
            FEWEST_TASKS if settings.circuit_failures else 0,
            int(settings.circuit_failures * 100),
            int(settings.circuit_pause * 1000),
            int(max(LONGEST_PAUSE_S, settings.circuit_pause) * 1000),
        ),
    )


def local_name(settings: Settings) -> str:
    """Return the name by which clients on this machine reach the server."""
    return "127.0.0.1" if settings.api_host in ("0.0.0.0", "::") else settings.api_host  # noqa: S104


def url_of(settings: Settings, listening: socket.socket) -> str:
    scheme, host = "https" if settings.ssl_cert_path else "http", local_name(settings)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
