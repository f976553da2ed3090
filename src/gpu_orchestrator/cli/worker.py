"""`gpu-orchestrator worker`: join a cluster manager and run its tasks on this machine."""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="worker", help="Run tasks of a cluster manager on this machine's GPUs.")


@app.default
def run(
    *,
    server: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_SERVER")] = "http://127.0.0.1:8000",
    token: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_TOKEN", show_default=False)] = "",
    token_file: Path | None = None,
    ca: Annotated[Path | None, Parameter(env_var="GPU_ORCHESTRATOR_CA")] = None,
    name: str = "",
    max_concurrent: Annotated[int, Parameter(env_var="MAX_CONCURRENT_TASKS")] = 1,
    processes: int = 0,
    label: tuple[str, ...] = (),
    function: tuple[str, ...] = (),
    upstream: tuple[str, ...] = (),
    allow_command: bool = False,
    simulate: str = "",
    simulation: Path | None = None,
    drain_s: float = 60.0,
    v: int = 0,
) -> None:
    """Join a cluster manager and run its tasks until stopped.

    Parameters
    ----------
    server
        The address of the cluster manager.
    token
        A worker token; better in a file or in the environment, where other users cannot read it.
    token_file
        A file that holds the token.
    ca
        A file with the certificates to trust, for a server with TLS; by default those of the system.
    name
        The name of this worker; by default that of the machine.
    max_concurrent
        How many tasks may run at once.
    processes
        How many processes share the tasks that need no GPU; by default up to one per core.
    label
        `key=value`, for tasks that ask for it. May be repeated.
    function
        `name=module:function`, a function that tasks of type `python` may call. May be repeated.
    upstream
        `name=URL`, a server that tasks of type `http` may call. May be repeated.
    allow_command
        Let tasks of type `command` run any program here.
    simulate
        Simulate GPUs instead of using the machine's: `4`, or `4xL4:24GiB,2xH200:141GiB`.
    simulation
        The folder in which simulated GPUs are kept.
    drain_s
        How long running tasks may take to finish when the worker is stopped.
    v
        1 and more: log also why things happen.
    """
    import uvloop

    from gpu_orchestrator.adapters import logs
    from gpu_orchestrator.adapters.gpus.find import find
    from gpu_orchestrator.adapters.settings import read_secret
    from gpu_orchestrator.apps.worker import main
    from gpu_orchestrator.apps.worker.frames import Options
    from gpu_orchestrator.apps.worker.session.connection import NotWanted
    from gpu_orchestrator.apps.worker.settings import Settings

    logs.configure(v)
    try:
        settings = Settings(
            server=server,
            token=read_secret(token_file) if token_file else token,
            ca=str(ca) if ca else "",
            name=name or socket.gethostname(),
            max_concurrent=max_concurrent,
            processes=processes or min(max_concurrent, os.cpu_count() or 1),
            labels=_pairs("label", label),
            options=Options(_pairs("function", function), _pairs("upstream", upstream), allow_command),
            drain_s=drain_s,
        )
        kept = Path.home() / ".cache" / "gpu-orchestrator" / "simulated" / settings.name
        gpus = find(simulate, simulation or kept)
        uvloop.run(main.run(settings, gpus))
    except (ValueError, OSError, NotWanted) as error:
        sys.exit(f"gpu-orchestrator worker: {error}")


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"--{option} {pair} is not a pair; write --{option} name=value")
        pairs[name] = value
    return pairs
