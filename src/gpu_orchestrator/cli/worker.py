"""`gpu-orchestrator worker`: join a cluster manager and run its tasks on this machine."""

import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, Parameter

from gpu_orchestrator.cli.options import whole

if TYPE_CHECKING:
    from gpu_orchestrator.adapters.process_rights import User

CANNOT_START = 2
"""Exit code if the arguments are wrong: `up` does not start such a worker again."""

app = App(name="worker", help="Run tasks of a cluster manager on this machine's GPUs.")


@app.default
def run(
    *,
    server: Annotated[tuple[str, ...], Parameter(env_var="GPU_ORCHESTRATOR_SERVER")] = (),
    token: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_TOKEN", show_default=False)] = "",
    token_file: Path | None = None,
    ca: Annotated[Path | None, Parameter(env_var="GPU_ORCHESTRATOR_CA")] = None,
    name: str = "",
    max_concurrent: Annotated[
        int | None, Parameter(env_var="MAX_CONCURRENT_TASKS", converter=whole, show_default=False)
    ] = None,
    processes: int = 0,
    label: tuple[str, ...] = (),
    pool: str = "",
    address: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_ADDRESS")] = "",
    function: tuple[str, ...] = (),
    app: tuple[str, ...] = (),
    model: Annotated[tuple[str, ...], Parameter(metavar="NAME=MODULE:CLASS")] = (),
    upstream: tuple[str, ...] = (),
    upstream_header: Annotated[tuple[str, ...], Parameter(metavar="NAME=FILE")] = (),
    allow_command: bool = False,
    sharing: Annotated[str, Parameter(env_var="GPU_SHARING")] = "accounted",
    simulate: str = "",
    devices_file: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    simulation: Path | None = None,
    gpus: str = "",
    drain_s: float = 60.0,
    share_runners: Annotated[bool, Parameter(env_var="GPU_ORCHESTRATOR_SHARE_RUNNERS")] = False,
    run_as: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_RUN_AS", metavar="USER")] = "",
    on_disconnect: Annotated[str, Parameter(env_var="GPU_ORCHESTRATOR_ON_DISCONNECT")] = "stop",
    model_cache_size: Annotated[int, Parameter(env_var="MODEL_CACHE_SIZE", converter=whole)] = 5,
    max_model_cache_size_gb: Annotated[float, Parameter(env_var="MAX_MODEL_CACHE_SIZE_GB")] = 50.0,
    model_load_timeout: Annotated[float, Parameter(env_var="MODEL_LOAD_TIMEOUT")] = 300.0,
    model_ttl: Annotated[float, Parameter(env_var="MODEL_TTL")] = 1800.0,
    model_min_loaded: Annotated[float, Parameter(env_var="MODEL_MIN_LOADED")] = 0.0,
    model_cache_dir: Annotated[str, Parameter(env_var="MODEL_CACHE_DIR", metavar="FOLDER")] = "",
    desk: Annotated[int | None, Parameter(show=False)] = None,
    v: int = 0,
) -> None:
    """Join a cluster manager and run its tasks until stopped.

    Parameters
    ----------
    server
        The address of the cluster manager; by default the one that `up` or `server` started on this machine.
        Repeat it for several servers on one store: they are tried in turn.
    token
        A worker token; better in a file or in the environment, where other users cannot read it.
    token_file
        A file that holds the token; by default that of this machine's own server.
    ca
        A file with the certificates to trust, for a server with TLS; by default those of the system.
    name
        The name of this worker; by default that of the machine, with a number if that one is taken here.
    max_concurrent
        How many tasks may run at once; by default as many as there are GPUs, at least 1. Give more if tasks
        share GPUs by memory.
    processes
        How many processes share the tasks that need no GPU; by default up to one per core.
    label
        `key=value`, for tasks that ask for it with `--worker-label`. May be repeated.
    pool
        The pool of this worker: it then runs tasks of that pool alone, and they run nowhere else.
    address
        Where other workers reach this one, for gangs: a host name or an IP address; by default the address
        by which it reaches the server.
    function
        `name=module:function`, a function that tasks of type `python` may call. The module is installed, or
        in the current folder. May be repeated.
    app
        A module whose `@task` functions this worker runs, each a task type `module.function`. The module is
        installed, or in the current folder. May be repeated.
    model
        `name=module:Class`, a class that loads models: tasks of type `name` run on them, and they stay loaded
        between tasks. The module is installed, or in the current folder. May be repeated.
    model_cache_size
        How many models may stay loaded.
    max_model_cache_size_gb
        How much memory loaded models may hold together.
    model_load_timeout
        Seconds that loading a model may take.
    model_ttl
        Seconds without a task after which a model is unloaded; 0 for never.
    model_min_loaded
        Seconds that a model stays before it is evicted for another, if others can go instead.
    model_cache_dir
        The folder with the weights of models whose path is not absolute.
    upstream
        `name=URL`, a server that tasks of type `http` may call. May be repeated.
    upstream_header
        `name=FILE`, a file with lines such as `Authorization: Bearer KEY` that are sent to that upstream with
        every request. May be repeated.
    allow_command
        Let tasks of type `command` run any program here.
    sharing
        What holds a task to the part of a GPU's memory that it reserved: `accounted`, nothing; `mps`,
        NVIDIA's driver, by a daemon for each owner.
    simulate
        Simulate GPUs instead of using the machine's: `4`, or `4xL4:24GiB,2xH200:141GiB`.
    devices_file
        A JSON file that describes the GPUs to simulate, with MIG instances and NUMA nodes.
    simulation
        The folder in which simulated GPUs are kept.
    gpus
        UUIDs of the GPUs to use, separated by commas, where others of this machine are for another worker.
    drain_s
        How long running tasks may take to finish when the worker is stopped.
    share_runners
        Let one process run tasks of several owners, one after the other: faster, but what a task leaves
        behind there is open to the next owner's.
    run_as
        The user that runs tasks, where root starts the worker: then tasks cannot read its token.
    on_disconnect
        What happens to running tasks when no server can be reached and the lease expires: `stop` ends them,
        so that none ever runs twice; `keep` lets them run, and a result counts if the task was not given to
        another worker meanwhile.
    desk
        The number of the socket at which a Celery worker, which has started this process, presents tickets.
    v
        1 and more: log also why things happen.
    """
    import uvloop

    from gpu_orchestrator.adapters import process_rights
    from gpu_orchestrator.adapters.gpus.chosen import Chosen
    from gpu_orchestrator.adapters.gpus.find import find
    from gpu_orchestrator.adapters.setting_names import refuse_slips
    from gpu_orchestrator.adapters.tls import BadCertificate
    from gpu_orchestrator.api import session
    from gpu_orchestrator.apps.worker import main
    from gpu_orchestrator.apps.worker.frames import Options
    from gpu_orchestrator.apps.worker.handlers import importable
    from gpu_orchestrator.apps.worker.handlers.find import installed_models
    from gpu_orchestrator.apps.worker.runners.mps import find_program
    from gpu_orchestrator.apps.worker.session.connection import NotWanted
    from gpu_orchestrator.apps.worker.settings import CacheRules, Settings
    from gpu_orchestrator.cli import joining, log_setup

    process_rights.hide()
    log_setup.configure(v)
    with ExitStack() as held:
        try:
            refuse_slips()
            user = process_rights.find(run_as) if run_as else None
            access = joining.access(server, token, token_file, str(ca) if ca else "")
            settings = Settings(
                servers=access.servers,
                token=access.token,
                ca=access.ca,
                name=held.enter_context(joining.name(access.servers, name)),
                max_concurrent=1 if max_concurrent is None else max_concurrent,
                processes=processes or 1,
                labels=_pairs("label", label),
                pool=pool,
                address=address,
                options=Options(
                    _pairs("function", function),
                    _pairs("upstream", upstream),
                    _headers(_pairs("upstream-header", upstream_header)),
                    allow_command,
                    importable.tasks_of(app, user),
                    installed_models() | _pairs("model", model),
                ),
                cache=CacheRules(
                    model_cache_size,
                    int(max_model_cache_size_gb * 1024),
                    model_ttl,
                    model_min_loaded,
                    model_load_timeout,
                    os.path.abspath(model_cache_dir) if model_cache_dir else "",
                ),
                sharing=sharing,
                drain_s=drain_s,
                share_runners=share_runners,
                run_as=user,
                on_disconnect=on_disconnect,
                desk=None if desk is None else socket.socket(fileno=desk),
            )
            if settings.sharing == session.MPS:
                find_program()
            importable.check(settings.options.functions, user)
            importable.check_models(_pairs("model", model), user)
            machine = find(simulate, simulation or _kept(user) / settings.name, user, devices_file)
            found = Chosen(machine, gpus.split(",")) if gpus else machine
            slots = max(len(found.devices()), 1) if max_concurrent is None else max_concurrent
            shared = processes or min(slots, os.cpu_count() or 1)
            settings = replace(settings, max_concurrent=slots, processes=shared)
        except (ValueError, OSError) as error:
            _exit(error, CANNOT_START)
        try:
            uvloop.run(main.run(settings, found))
        except (BadCertificate, OSError, NotWanted) as error:
            _exit(error, 1)


def _kept(user: "User | None") -> Path:
    """Return where simulated GPUs are kept: where tasks may write, too."""
    if user is None:
        return Path.home() / ".cache" / "gpu-orchestrator" / "simulated"
    return Path(tempfile.gettempdir()) / f"gpu-orchestrator-simulated-{user.uid}"


def _exit(error: Exception, code: int) -> NoReturn:
    print(f"gpu-orchestrator worker: {error}", file=sys.stderr)
    sys.exit(code)


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"--{option} {pair} is not a pair; write --{option} name=value")
        pairs[name] = value
    return pairs


def _headers(files: dict[str, str]) -> dict[str, dict[str, str]]:
    """Read the headers for each upstream from its file."""
    found: dict[str, dict[str, str]] = {}
    for name, path in files.items():
        lines = [line for line in Path(path).read_text().splitlines() if line.strip()]
        for number, line in enumerate(lines, 1):
            header, separator, value = line.partition(":")
            if not separator or not header.strip().isascii() or not value.strip().isprintable():
                raise ValueError(
                    f"--upstream-header {name}={path}: line {number} is no header; write Name: value"
                )
            found.setdefault(name, {})[header.strip()] = value.strip()
    return found
