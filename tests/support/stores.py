"""Real Valkey servers for tests: the embedded one, and one as an operator would run it (TCP, password), also
of another version."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.valkey.database import Database, wait_until_up
from gpu_orchestrator.adapters.store.valkey.embedded import binary, embedded
from tests.support import debian_stores
from tests.support.replicated import replicated

PASSWORD = "correct horse"


@contextlib.asynccontextmanager
async def external(folder: Path, *, program: Path | None = None, **settings: str) -> AsyncIterator[str]:
    """Start a server with a port and a password; `settings` are lines of its configuration. `program` is a
    server of another version than ours."""
    port = free_port()
    options = {"port": str(port), "requirepass": PASSWORD, "dir": str(folder), "save": "", **settings}
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    process = subprocess.Popen([program or binary(), *arguments], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    url = f"redis://:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/0"
    database = Database(url)
    try:
        await wait_until_up(database, 30)
        yield url
    finally:
        await database.close()
        process.terminate()
        await asyncio.to_thread(process.wait)


@contextlib.asynccontextmanager
async def server(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the address of a durable server: `embedded` or `external`, the `sentinel` of a replicated one, or
    an external one of another version (`debian_stores.STORES`)."""
    if kind == "embedded":
        async with embedded(folder) as running:
            yield running.url
    elif kind == "sentinel":
        async with replicated(folder, fsync="always") as several:
            yield several.url
    else:
        program = debian_stores.get(kind) if kind in debian_stores.STORES else None
        async with external(folder, program=program, appendonly="yes", appendfsync="always") as url:
            yield url
