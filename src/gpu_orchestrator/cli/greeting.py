"""What `up` says once it is up: where it is, its key, what to be careful about, and what to try next."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rich.console import Console
from rich.text import Text

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.cli.host import Host


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client finds the server that was just started."""

    url: str
    data: str
    ca: str = ""
    needs_path: bool = False
    needs_url: bool = False


def show(console: Console, host: Host, *, gpus: int) -> None:
    url, secrets, data = host.server.url, host.secrets, host.settings.data_dir
    console.print(f"[bold]gpu-orchestrator[/] is up at [bold]{url}[/]")
    if secrets.fresh:
        more = "; older keys still work" if secrets.further else ""
        console.print(f"API key (shown once; `gpu-orchestrator key show` prints it again{more}):")
        # On a line of its own, and never broken: it must survive being copied from a narrow terminal.
        console.print(Text(f"  {secrets.api_key}", style="bold"), soft_wrap=True)
    else:
        console.print("API key: `gpu-orchestrator key show` prints it")
    console.print(Text(f"data, logs, client key and worker token: {data}"), soft_wrap=True)
    for line in warnings(gpus=gpus, in_clear=host.server.in_clear):
        console.print(Text(line, style="yellow"))
    console.print("Try, in another terminal:")
    for line in hints(_place(host), has_gpu=gpus > 0):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print("Ctrl-C stops everything; submitted tasks are kept.\n")


def warnings(*, gpus: int, in_clear: bool) -> Iterator[str]:
    if not gpus:
        yield "no GPU found; try --simulate 4 (tasks with --gpus 0 run without one)"
    if in_clear:
        yield (
            "other machines can connect, and keys travel in clear text; "
            "set SSL_CERT_PATH and SSL_KEY_PATH, or use --host 127.0.0.1"
        )


def hints(place: Place, *, has_gpu: bool) -> Iterator[str]:
    """Return commands that reach exactly this server, whatever else the user has set up."""
    if place.needs_path:
        yield f"export PATH={quote(str(Path(sys.executable).parent))}:$PATH"
    if place.data != Settings().data_dir:
        yield f"export DATA_DIR={quote(place.data)}"
    if place.needs_url:
        yield f"export GPU_ORCHESTRATOR_URL={place.url}"
    yield f'gpu-orchestrator task submit echo \'{{"hello": "world"}}\' {"" if has_gpu else "--gpus 0 "}--wait'
    yield "gpu-orchestrator worker list"
    trust = f"--cacert {quote(place.ca)} " if place.ca else ""
    key = '-H "Authorization: Bearer $(gpu-orchestrator key show)"'
    yield f"curl {trust}{key} {place.url}/cluster/status"


def _place(host: Host) -> Place:
    others = (os.environ.get("GPU_ORCHESTRATOR_URL", ""), *(["login"] if _login_file().exists() else []))
    return Place(
        url=host.server.url,
        data=str(Path(host.settings.data_dir).absolute()),
        ca=host.settings.ssl_cert_path and str(Path(host.settings.ssl_cert_path).absolute()),
        needs_path=shutil.which("gpu-orchestrator") is None,
        needs_url=any(other not in ("", host.server.url) for other in others),
    )


def _login_file() -> Path:
    """Return where `login` keeps another server, which goes before the one of this machine."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "gpu-orchestrator" / "client.json"
