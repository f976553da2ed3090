"""What `up` does: check, host the manager, keep a worker running on this machine, and show what happens."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from gpu_orchestrator.adapters import settings, tls
from gpu_orchestrator.adapters.gpus import find, simulated
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.worker.settings import MOST_CONCURRENT
from gpu_orchestrator.cli import greeting
from gpu_orchestrator.cli import host as hosting
from gpu_orchestrator.cli.own_worker import DRAIN_S, OwnWorker
from gpu_orchestrator.cli.view import ACTIVE, View, samples

LEAST_CONCURRENT = 8
"""Of `up` without `--max-concurrent`: on one machine, tasks without a GPU and tasks that share one are
common."""
console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Asked:
    simulate: str = ""
    max_concurrent: int | None = None
    quiet: bool = False
    apps: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


async def up(given: Mapping[str, Any], asked: Asked) -> int:
    async def work(ending: hosting.Ending) -> None:
        chosen = settings.load(**given)
        gpus = check(chosen, asked)
        async with hosting.hosting(chosen, log_to_file=not asked.quiet) as host:
            slots = max(gpus, LEAST_CONCURRENT) if asked.max_concurrent is None else asked.max_concurrent
            worker = OwnWorker(
                host,
                simulate=asked.simulate,
                max_concurrent=slots,
                apps=asked.apps,
                models=asked.models,
            )
            async with _kept(worker):
                greeting.show(console, host, gpus=gpus)
                ending.is_up()
                if not asked.quiet:
                    await samples(host.server.manager, has_gpu=gpus > 0)
                await _watch(host, worker, ending, quiet=asked.quiet)
                await _end(host, worker, ending)
        console.print("stopped")

    return await hosting.reported(work)


def check(chosen: Settings, asked: Asked) -> int:
    """Raise for what would fail later, before anything is started or written; return the number of GPUs."""
    if asked.max_concurrent is not None and not 1 <= asked.max_concurrent <= MOST_CONCURRENT:
        raise BadSettings(
            f"--max-concurrent {asked.max_concurrent} is not allowed: "
            f"give a whole number from 1 to {MOST_CONCURRENT}"
        )
    _check_certificate(chosen)
    if asked.simulate:
        try:
            return simulated.count(asked.simulate)
        except simulated.BadDescription as error:
            raise BadSettings(f"--simulate: {error}") from error
    gpus = find.find()
    try:
        return len(gpus.devices())
    finally:
        gpus.close()


def _check_certificate(chosen: Settings) -> None:
    """Check that the worker and the commands of this machine, which connect like any client, will trust the
    server."""
    if not (cert := chosen.ssl_cert_path):
        return
    name = server.local_name(chosen)
    if wrong := tls.complaint(tls.server(cert, chosen.ssl_key_path), cert, name):
        raise tls.BadCertificate(
            f"SSL_CERT_PATH={cert} is not valid for {name}: {wrong}; "
            "set API_HOST to a name or address of this machine that the certificate is for"
        )


@contextlib.asynccontextmanager
async def _kept(worker: OwnWorker) -> AsyncIterator[None]:
    keeping = asyncio.get_running_loop().create_task(worker.keep())
    try:
        yield
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        await worker.kill()


async def _watch(host: hosting.Host, worker: OwnWorker, ending: hosting.Ending, *, quiet: bool) -> None:
    """Show what happens until asked to end."""
    view = View(host.server.manager, console, lambda: [*worker.problems(), *_disk_problems(host)], not quiet)
    showing = asyncio.get_running_loop().create_task(view.run())
    asked = asyncio.get_running_loop().create_task(ending.asked.wait())
    await asyncio.wait([asked, showing], return_when=asyncio.FIRST_COMPLETED)
    showing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await showing
    await asked


def _disk_problems(host: hosting.Host) -> list[str]:
    """Return what keeps the store from working; a full disk first."""
    embedded = host.server.embedded
    if embedded is None:
        return []
    found = str(embedded.disk.left())
    return [found] if found else [embedded.trouble] if embedded.trouble else []


async def _end(host: hosting.Host, worker: OwnWorker, ending: hosting.Ending) -> None:
    """Let the worker finish what it runs, unless asked again."""
    if count := await _running(host, worker):
        tasks, it = ("1 task", "it") if count == 1 else (f"{count} tasks", "them")
        console.print(f"waiting for {tasks} (Ctrl-C again to stop {it}); {DRAIN_S:g} s at most", style="bold")
    await worker.leave(ending.at_once)


async def _running(host: hosting.Host, worker: OwnWorker) -> int:
    """Return how many tasks this machine's own worker has; 0 if the store does not answer."""
    tasks = host.server.manager.store.tasks
    with contextlib.suppress(StoreError):
        return (await tasks.page(states=ACTIVE, worker=worker.name, offset=0, limit=1)).total
    return 0
