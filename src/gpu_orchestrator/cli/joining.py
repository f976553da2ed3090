"""How a worker joins: which server, with which token and certificate, and under which name.

What is not given is found as the client commands find it: in what `up` or `server` left in the data directory
of this machine. That token is for that server only: no other server receives it.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from os import getuid
from pathlib import Path

from gpu_orchestrator.adapters import private_files, settings
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.worker.settings import name_of

DEFAULT_SERVER = "http://127.0.0.1:8000"
LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Access:
    servers: tuple[str, ...]
    token: str
    ca: str = ""


def access(
    given: Sequence[str] = (), token: str = "", token_file: Path | None = None, ca: str = ""
) -> Access:
    """Complete what was given with what this machine knows. Addresses in one text are separated by commas or
    blanks, as in the environment."""
    chosen = settings.load(only=("data_dir", "worker_token", "worker_token_file"))
    folder = Path(chosen.data_dir)
    here = _of_this_machine(folder)
    named = tuple(each for text in given for each in text.replace(",", " ").split())
    servers = named or (str(here.get("url", "")) or DEFAULT_SERVER,)
    is_here = bool(here) and all(_same(each, str(here.get("url", ""))) for each in servers)
    if token_file is not None:
        token = _read(token_file, folder)
    if is_here and not token:
        with contextlib.suppress(OSError):  # it belongs to another user, who must give it
            token = chosen.worker_token or private_files.read(folder / private_files.TOKEN)
    return Access(servers, token, ca or (str(here.get("ca", "")) if is_here else ""))


@contextlib.contextmanager
def name(servers: Sequence[str], given: str = "") -> Iterator[str]:
    """Yield the worker's name, and hold it on this machine: a second worker without a name of its own is
    called after the machine with a number, `gpu-box-2`. A given name is never changed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
        if given:
            _hold(holder, servers, given)
            yield given
            return
        host = name_of(socket.gethostname())
        for number in count(1):
            ending = "" if number == 1 else f"-{number}"
            chosen = f"{host[: LONGEST_NAME - len(ending)]}{ending}"
            if _hold(holder, servers, chosen):
                break
        yield chosen


def _hold(holder: socket.socket, servers: Sequence[str], name: str) -> bool:
    """Return whether no other worker of this machine has the name at these servers. The kernel lets go of an
    abstract socket when its process ends, however it ends, so a worker that crashed gets its name back."""
    where = " ".join(sorted(_plain(each) for each in servers))
    mark = sha256(f"{getuid()} {where} {name}".encode()).hexdigest()[:32]
    try:
        holder.bind(f"\0gpu-orchestrator-worker-{mark}")
    except OSError:
        return False
    return True


def _of_this_machine(folder: Path) -> dict[str, object]:
    try:
        return private_files.read_object(folder / private_files.CLIENT)
    except OSError:
        return {}


def _read(path: Path, folder: Path) -> str:
    try:
        return settings.read_secret(path)
    except (OSError, ValueError) as error:
        own = folder / private_files.TOKEN
        advice = (
            f"leave it out to use the token of this machine's server, {own}"
            if own.exists()
            else "give the file worker-token from the server's data directory"
        )
        raise BadSettings(f"--token-file {path} {settings.why_unreadable(error)}; {advice}") from error


def _same(one: str, other: str) -> bool:
    return _plain(one) == _plain(other)


def _plain(url: str) -> str:
    return url.rstrip("/").replace("//localhost", "//127.0.0.1")
