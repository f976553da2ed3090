"""`gpu-orchestrator backup` and `restore`: all tasks and keys in one file, made while the server works."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

FILES = ("keys.json",)
"""Kept beside the store in the data directory; hashes only. Secrets in the clear are not for backups."""


def backup(file: Path, *, data: Path | None = None) -> None:
    """Write all tasks, results and keys (as hashes) into a file, while the server works or not.

    The secrets in the data directory (client.json, worker-token, secrets-key, callback-secret) are not in it:
    keep those in another place, secrets-key above all if owners made secrets for callbacks.

    Parameters
    ----------
    file
        The file to write; one that is there is replaced when the new one is whole.
    data
        The data directory of the server, if it is not the one of the settings.
    """
    _run(lambda: _backup(file, data))


def restore(file: Path, *, data: Path | None = None) -> None:
    """Bring a backup back into an empty store. The server must not be running.

    Parameters
    ----------
    file
        The file that `backup` wrote.
    data
        The data directory to restore into, if it is not the one of the settings.
    """
    _run(lambda: _restore(file, data))


def _run(work: Callable[[], Awaitable[str]]) -> None:
    import uvloop

    from gpu_orchestrator.adapters.settings import BadSettings
    from gpu_orchestrator.adapters.store.errors import StoreError

    async def done() -> str:
        return await work()

    try:
        print(uvloop.run(done()))
    except (BadSettings, StoreError, OSError) as error:
        sys.exit(f"gpu-orchestrator: {error}")


async def _backup(file: Path, data: Path | None) -> str:
    from gpu_orchestrator.adapters import settings
    from gpu_orchestrator.adapters.store import backup as keeping
    from gpu_orchestrator.adapters.store.database import Database

    chosen = settings.load(data_dir=str(data) if data else None)
    folder = Path(chosen.data_dir)
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    async with _address(chosen.external_store, folder) as url, Database(url) as database:
        made = await keeping.save(database, file, files)
    return f"{file}: {made.tasks} tasks, {made.keys} keys of the store in all"


async def _restore(file: Path, data: Path | None) -> str:
    from gpu_orchestrator.adapters import settings
    from gpu_orchestrator.adapters.store import backup as keeping
    from gpu_orchestrator.adapters.store.database import Database
    from gpu_orchestrator.cli import host

    chosen = settings.load(data_dir=str(data) if data else None)
    folder = Path(chosen.data_dir)
    header = await asyncio.to_thread(keeping.check, file)
    with host.locked(folder):
        async with _address(chosen.external_store, folder) as url, Database(url) as database:
            await keeping.refuse_if_full(database)
            for name in FILES:  # first: a store that is whole must not be left without its keys
                if name in header.files:
                    host.write_private(folder / name, header.files[name].decode())
            made = await keeping.load(database, file)
    return f"{made.tasks} tasks are back; start the server with the keys and files it had"


@contextlib.asynccontextmanager
async def _address(external: str, folder: Path) -> AsyncIterator[str]:
    """Of the store: the configured one, the one that a running server has, or one for the while."""
    from gpu_orchestrator.adapters.store.database import Database
    from gpu_orchestrator.adapters.store.embedded import Embedded
    from gpu_orchestrator.adapters.store.errors import Unreachable

    if external:
        yield external
        return
    server = Embedded(folder / "store")
    try:
        async with Database(server.url) as database:
            await database.ping()
    except Unreachable:
        await server.start()
        try:
            yield server.url
        finally:
            await server.stop()
    else:
        yield server.url
