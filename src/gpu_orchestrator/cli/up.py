"""`gpu-orchestrator up`: everything on this machine with one command, and a live view of it."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpu_orchestrator.cli.options import whole


def up(
    *,
    simulate: str = "",
    port: Annotated[int | None, Parameter(converter=whole)] = None,
    host: str | None = None,
    data: Path | None = None,
    app: tuple[str, ...] = (),
    model: Annotated[tuple[str, ...], Parameter(metavar="NAME=MODULE:CLASS")] = (),
    max_concurrent: Annotated[
        int | None, Parameter(env_var="MAX_CONCURRENT_TASKS", converter=whole, show_default=False)
    ] = None,
    quiet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Start a store, the cluster manager and a worker for this machine's GPUs.

    Parameters
    ----------
    simulate
        Simulate GPUs instead of using the machine's: `4`, or `4xL4:24GiB,2xH200:141GiB`.
    port
        The port to listen on; 8000 by default.
    host
        The address to listen on; 127.0.0.1 by default.
    data
        The folder for the store and the keys; ~/.local/share/gpu-orchestrator by default.
    app
        A module whose `@task` functions the worker runs. The module is installed, or in the current folder.
        May be repeated.
    model
        `name=module:Class`, a class that loads models: tasks of type `name` run on them. May be repeated.
    max_concurrent
        How many tasks the worker may run at once; by default as many as there are GPUs, at least 8.
    quiet
        No live view, and no sample tasks.
    """
    import uvloop

    from gpu_orchestrator.cli import local

    given = {"api_host": host, "api_port": port, "data_dir": str(data) if data else None}
    asked = local.Asked(simulate, max_concurrent, quiet, app, model)
    sys.exit(uvloop.run(local.up(given, asked)))
