"""What `up` does: host the manager, keep a worker running on this machine, and show what happens."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.cli import host as hosting
from gpu_orchestrator.cli.view import View, samples

RESTART_S = 1.0
END_S = 10.0
console = Console()


@dataclass(frozen=True, slots=True)
class Asked:
    simulate: str = ""
    max_concurrent: int = 8
    quiet: bool = False


async def up(given: Mapping[str, Any], asked: Asked) -> int:
    try:
        shows = not asked.quiet
        async with hosting.hosting(given, log_to_file=shows) as host:
            _check_certificate(host)
            async with _worker(host, asked):
                _greet(host)
                await _watch(host, asked)
    except hosting.KNOWN_ERRORS as error:
        print(f"gpu-orchestrator: {error}", file=sys.stderr)
        return 1
    return 0


def _check_certificate(host: hosting.Host) -> None:
    """Check that the worker and the commands of this machine, which connect like any client, will trust the
    server."""
    running, cert = host.server, host.settings.ssl_cert_path
    name = urlsplit(running.url).hostname or ""
    if running.tls is not None and (wrong := tls.complaint(running.tls, cert, name)):
        raise tls.BadCertificate(
            f"SSL_CERT_PATH={cert} is not valid for {name}: {wrong}; "
            "set API_HOST to a name or address of this machine that the certificate is for"
        )


def _greet(host: hosting.Host) -> None:
    url, secrets = host.server.url, host.secrets
    console.print(f"\n[bold]gpu-orchestrator[/] is up at [bold]{url}[/]")
    if secrets.fresh:
        console.print(f"API key (shown once): [bold]{secrets.api_key}[/]")
    console.print(f"data, logs, client key and worker token are in {host.settings.data_dir}")
    console.print("\nTry, in another terminal:")
    for line in (
        *([] if shutil.which("gpu-orchestrator") else [f"export PATH={Path(sys.executable).parent}:$PATH"]),
        'gpu-orchestrator task submit echo \'{"hello": "world"}\' --wait',
        "gpu-orchestrator task submit sleep '{\"seconds\": 5}' --memory 4GB",
        "gpu-orchestrator worker list",
        f'curl -H "Authorization: Bearer $API_KEY" {url}/cluster/status',
    ):
        console.print(f"  {line}", highlight=False)
    console.print("\nCtrl-C stops everything; submitted tasks are kept.\n")


async def _watch(host: hosting.Host, asked: Asked) -> None:
    ended = asyncio.get_running_loop().create_task(hosting.until_told_to_end())
    if asked.quiet:
        return await ended
    if host.secrets.fresh:
        await samples(host.server.manager)
    view = asyncio.get_running_loop().create_task(View(host.server.manager, console).run())
    await asyncio.wait([ended, view], return_when=asyncio.FIRST_COMPLETED)
    view.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await view
    return await ended


@contextlib.asynccontextmanager
async def _worker(host: hosting.Host, asked: Asked) -> AsyncIterator[None]:
    """Run a worker process: restart it when it ends, and drain it when we end."""
    keeper = asyncio.get_running_loop().create_task(_keep_worker(host, asked))
    try:
        yield
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper


async def _keep_worker(host: hosting.Host, asked: Asked) -> None:
    while True:
        process = await _start_worker(host, asked)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await _ended(process)
        await asyncio.sleep(RESTART_S)


async def _start_worker(host: hosting.Host, asked: Asked) -> asyncio.subprocess.Process:
    folder = Path(host.settings.data_dir)
    with (folder / "worker.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from gpu_orchestrator.cli.main import main; main()",
            "worker",
            *("--server", host.server.url, "--name", socket.gethostname(), "--drain-s", "5"),
            *("--max-concurrent", str(asked.max_concurrent), "--simulation", str(folder / "gpus")),
            *(("--simulate", asked.simulate) if asked.simulate else ()),
            *(("--v", "1") if host.settings.log_level == "DEBUG" else ()),
            env=_environment(host),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
        )


def _environment(host: hosting.Host) -> dict[str, str]:
    """Pass secrets by the environment: every user could read them on a command line."""
    ca = {"GPU_ORCHESTRATOR_CA": host.settings.ssl_cert_path} if host.settings.ssl_cert_path else {}
    return {**os.environ, **ca, "GPU_ORCHESTRATOR_TOKEN": host.secrets.worker_token}


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
