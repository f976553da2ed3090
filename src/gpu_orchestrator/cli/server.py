"""`gpu-orchestrator server`: the cluster manager alone; workers join it from other machines."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpu_orchestrator.cli.options import whole


def server(
    *,
    host: str | None = None,
    port: Annotated[int | None, Parameter(converter=whole)] = None,
    data: Path | None = None,
    processes: Annotated[int | None, Parameter(converter=whole)] = None,
    insecure_dev: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Run the cluster manager: REST API, dispatcher and, unless REDIS_URL is set, its own store.

    Parameters
    ----------
    host
        The address to listen on; 127.0.0.1 by default.
    port
        The port to listen on; 8000 by default.
    data
        The folder for the store and the keys; ~/.local/share/gpu-orchestrator by default.
    processes
        How many processes serve the API, beside the one that starts them; 1 by default: this one.
    insecure_dev
        Accept a remote store without a password.
    """
    import uvloop

    from gpu_orchestrator.cli import host as hosting

    given = {
        "api_host": host,
        "api_port": port,
        "data_dir": str(data) if data else None,
        "worker_processes": processes,
    }
    sys.exit(uvloop.run(hosting.serve(given, insecure=insecure_dev)))
