"""Settings of one worker, from the command line, checked once before the worker starts."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import get_args
from urllib.parse import urlsplit

from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import session
from gpu_orchestrator.api.session import OnDisconnect
from gpu_orchestrator.apps.worker.frames import Options

MOST_CONCURRENT = 10_000
_ADDRESS = re.compile(r"[A-Za-z0-9.:_-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def name_of(host: str) -> str:
    """Return the name of a worker on this host: the host's name, as far as a worker may be called so."""
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", host)[:63].strip("._-")
    return allowed or "worker"


@dataclass(frozen=True, slots=True)
class CacheRules:
    """At most `most` models with `most_mib` in all stay loaded. One that no task used for `ttl_s` goes (0:
    never); one that was loaded less than `min_loaded_s` ago goes after the others. `folder` is where the
    weights are whose path is not absolute."""

    most: int = 5
    most_mib: int = 50 * 1024
    ttl_s: float = 0.0
    min_loaded_s: float = 0.0
    load_timeout_s: float = 300.0
    folder: str = ""

    def path_of(self, model: session.Model) -> str:
        """Return where the weights of a model are; empty if nobody said so and the folder has none of its
        name."""
        if model.path:
            return str(Path(self.folder, model.path)) if self.folder else model.path
        at = Path(self.folder, model.name)
        return str(at) if self.folder and at.exists() else ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator can set. `servers` are tried in turn. `on_disconnect` is what happens to running tasks
    when the lease cannot be renewed. `ca` is a file with the certificates to trust; if empty, the worker
    trusts those of the system. It takes up to `max_concurrent` tasks at once; tasks without a device share
    `processes` runners. With `share_runners` one runner serves tasks of several owners. Runners have the
    rights of `run_as`, else those of the worker. `sharing` is what holds tasks to the device memory that they
    reserved: `mps` or, only by counting, `accounted`. `desk` is the socket at which the processes of a Celery
    worker present tickets; None without Celery. `address` is where other workers reach this one; empty for
    that by which it reaches the server."""

    servers: tuple[str, ...]
    token: str = field(repr=False)
    name: str
    ca: str = ""
    max_concurrent: int = 1
    processes: int = 1
    labels: dict[str, str] = field(default_factory=dict)
    pool: str = ""
    options: Options = field(default_factory=Options)
    sharing: str = session.ACCOUNTED
    drain_s: float = 60.0
    idle_s: float = 30.0
    share_runners: bool = False
    run_as: User | None = None
    on_disconnect: str = "stop"
    desk: socket | None = None
    cache: CacheRules = CacheRules()
    address: str = ""

    def __post_init__(self) -> None:
        for server in self.servers or ("",):
            if urlsplit(server).scheme not in ("http", "https") or not urlsplit(server).hostname:
                raise BadSettings(
                    f"server '{server}' is not an address; write http://host:port or https://host"
                )
        if self.on_disconnect not in get_args(OnDisconnect):
            raise BadSettings(
                f"--on-disconnect {self.on_disconnect} is not known; give stop (end running tasks when the "
                "lease cannot be renewed) or keep (let them run on)"
            )
        if not self.token:
            raise BadSettings(
                f"no token for {', '.join(self.servers)}; give --token-file FILE or GPU_ORCHESTRATOR_TOKEN. "
                "`up` and `server` keep theirs in the file worker-token of their data directory"
            )
        if not _NAME.fullmatch(self.name):
            raise BadSettings(
                f"'{self.name}' is not a valid worker name; use up to 63 letters, digits, '.', '_' and '-'"
            )
        if self.pool and not _NAME.fullmatch(self.pool):
            raise BadSettings(
                f"--pool {self.pool} is not a valid name; use up to 63 letters, digits, '.', '_' and '-'"
            )
        if not 1 <= self.max_concurrent <= MOST_CONCURRENT or self.processes < 1:
            raise BadSettings(
                f"a worker runs 1 or more tasks at once (at most {MOST_CONCURRENT}), in 1 or more processes; "
                f"--max-concurrent is {self.max_concurrent}, --processes {self.processes}"
            )
        if self.sharing not in (session.ACCOUNTED, session.MPS):
            raise BadSettings(f"GPU_SHARING is '{self.sharing}'; write accounted or mps")
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise BadSettings(
                f"--address {self.address} is not an address; give a host name or IP address without port"
            )
        _check_options(self.options)
        _check_cache(self.cache)

    def session_url(self, server: str) -> str:
        return f"{self.own_url(server)}/session"

    def own_url(self, server: str) -> str:
        return f"{server.rstrip('/')}/workers/{self.name}"


def _check_options(options: Options) -> None:
    for name, target in options.functions.items():
        module, _, function = target.partition(":")
        if not module or not function:
            raise BadSettings(
                f"function {name}={target} does not name a function; write NAME=module:function"
            )
    for name, url in options.upstreams.items():
        if urlsplit(url).scheme not in ("http", "https"):
            raise BadSettings(f"upstream {name}={url} is not an address; write NAME=http://host:port")
    for name in options.upstream_headers:
        if name not in options.upstreams:
            raise BadSettings(f"there are headers for upstream {name}, but no --upstream {name}=URL")


def _check_cache(cache: CacheRules) -> None:
    wrong = [
        f"{name} is {value:g}; give {least:g} or more"
        for name, value, least in (
            ("MODEL_CACHE_SIZE", cache.most, 1),
            ("MAX_MODEL_CACHE_SIZE_GB", cache.most_mib / 1024, 0.001),
            ("MODEL_LOAD_TIMEOUT", cache.load_timeout_s, 0.1),
            ("MODEL_TTL", cache.ttl_s, 0),
            ("MODEL_MIN_LOADED", cache.min_loaded_s, 0),
        )
        if not value >= least
    ]
    if wrong:
        raise BadSettings("\n".join(wrong))
