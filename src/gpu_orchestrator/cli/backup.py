"""`gpu-orchestrator backup` and `restore`: all tasks and keys in one file, made while the server runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpu_orchestrator.cli import output

FILES = ("keys.json",)
"""Kept beside the store in the data directory; hashes only. Plaintext secrets are not backed up."""
SECRETS = ("client.json", "worker-token", "callback-secret", "secrets-key")
Data = Annotated[Path | None, Parameter(metavar="FOLDER")]


def backup(file: Path, /, *, data: Data = None) -> None:
    """Write all tasks, results and keys (as hashes) into a file. The server may be running.

    The secrets in the data directory (client.json, worker-token, secrets-key, callback-secret) are not in it:
    back them up elsewhere, above all secrets-key if owners created secrets for callbacks.

    Parameters
    ----------
    file
        The file to write; an existing one is replaced once the new one is complete.
    data
        The data directory of the server, if it is not the configured one.
    """
    _run(lambda: _backup(file, data.absolute() if data else None))


def restore(file: Path, /, *, data: Data = None) -> None:
    """Restore a backup into an empty store. The server must not be running.

    Parameters
    ----------
    file
        The file that `backup` wrote.
    data
        The data directory to restore into, if it is not the configured one.
    """
    _run(lambda: _restore(file, data.absolute() if data else None))


def _run(work: Callable[[], Awaitable[str]]) -> None:
    import uvloop

    from gpu_orchestrator.adapters.settings import BadSettings
    from gpu_orchestrator.adapters.store.errors import StoreError

    async def done() -> str:
        return await work()

    try:
        output.say(uvloop.run(done()))
    except OSError as error:
        output.fail(f"{error.filename or 'a file'} cannot be used: {(error.strerror or str(error)).lower()}")
    except (BadSettings, StoreError) as error:
        output.fail(error)


async def _backup(file: Path, data: Path | None) -> str:
    from gpu_orchestrator.adapters import settings
    from gpu_orchestrator.adapters.store.valkey import backup as keeping
    from gpu_orchestrator.adapters.store.valkey.database import Database

    _refuse_bad_target(file)
    chosen = settings.load(data_dir=str(data) if data else None)
    folder = Path(chosen.data_dir)
    if not chosen.external_store and not (folder / "store").exists():
        output.fail(f"{folder} is not the data directory of a server: it has no store; name it with --data")
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    async with _address(chosen.external_store, folder) as url, Database(url) as database:
        made = await keeping.save(database, file, files)
    return f"{file}: {tasks(made.tasks)}, results, keys (as hashes), workers, events and the audit log"


async def _restore(file: Path, data: Path | None) -> str:
    from gpu_orchestrator.adapters import private_files, settings
    from gpu_orchestrator.adapters.store.valkey import backup as keeping
    from gpu_orchestrator.adapters.store.valkey.database import Database
    from gpu_orchestrator.cli import host

    chosen = settings.load(data_dir=str(data) if data else None)
    folder = Path(chosen.data_dir)
    header = await asyncio.to_thread(keeping.check, file)
    with host.locked(folder):
        async with _address(chosen.external_store, folder) as url, Database(url) as database:
            await keeping.refuse_unless_it_fits(database, file)
            for name in FILES:  # first: a restored store must not be left without its keys
                if name in header.files:
                    private_files.write(folder / name, header.files[name].decode())
            made = await keeping.load(database, file)
    missing = [name for name in SECRETS if not (folder / name).exists()]
    put = f"put {', '.join(missing)} back into {folder} if you kept them, then " if missing else ""
    return f"{tasks(made.tasks)} restored; {put}start the server"


def tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _refuse_bad_target(file: Path) -> None:
    if file.is_dir():
        output.fail(f"{file} is a folder; give a file to write, such as {file / 'tasks.backup'}")
    if not file.absolute().parent.is_dir():
        output.fail(f"{file} cannot be written: there is no folder {file.absolute().parent}; create it first")


@contextlib.asynccontextmanager
async def _address(external: str, folder: Path) -> AsyncIterator[str]:
    """Yield the address of the store: the configured one, that of a running server, or a temporary one."""
    from gpu_orchestrator.adapters.store.errors import Unreachable
    from gpu_orchestrator.adapters.store.valkey.database import Database
    from gpu_orchestrator.adapters.store.valkey.embedded import Embedded

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
