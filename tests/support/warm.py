"""Start our own program as a process that has loaded its modules already.

Tests start hundreds of processes of a few commands, and most of the CPU of a start goes into imports. So each
command has one process that has loaded its modules and waits (`warm_process`); a start is a fork of it. The
fork is a child of this process like any other, with a number, arguments, variables, folder, streams and
session of its own. It differs in /proc/PID/environ and exe, and shares memory with the process that waits.
A test about the start itself, about memory, or about what is imported uses `subprocess`.
"""

import array
import atexit
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr

import msgspec

from tests.support import warm_process
from tests.support.warm_process import ROOM, Job

PROGRAM = str(Path(sys.executable).with_name("gpu-orchestrator"))
READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "SSL_CERT", "COVERAGE", "PROMETHEUS")
"""How the variables begin that Python or a library reads once, while it is loaded."""
_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_USUAL = {
    "preexec_fn": None,
    "pass_fds": (),
    "executable": None,
    "shell": False,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}
"""What a fork here does not do: if it is wanted, Python starts the process."""
_is_allowed = False


def allow() -> None:
    """Let `Popen` use warm processes. Elsewhere, as in a benchmark, it is that of `subprocess`."""
    global _is_allowed
    _is_allowed = True


class Popen(subprocess.Popen[AnyStr]):
    """`subprocess.Popen` whose child is a fork of a warm process, wherever that makes no difference to it."""

    def _execute_child(self, *given: Any) -> None:
        wanted = dict(zip(_PARAMETERS, given, strict=True))
        words = [os.fspath(word) for word in wanted["args"]]
        environ = dict(os.environ if wanted["env"] is None else wanted["env"])
        command = command_of(words)
        ours = (wanted[name] for name in ("p2cread", "c2pwrite", "errwrite"))
        streams = [number if given == -1 else given for number, given in enumerate(ours)]
        is_usual = all(wanted[name] == value for name, value in _USUAL.items())
        if not command or not is_usual or any(map(os.isatty, streams)):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        job = Job(
            words,
            os.fspath(wanted["cwd"] or Path.cwd()),
            environ,
            wanted["start_new_session"],
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        )
        self.pid = _waiting(command, environ).start(job, streams)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(wanted[name] for name in pipes))  # type: ignore[attr-defined]


def command_of(words: Sequence[str]) -> str:
    """Return the command that would be started, or nothing if no warm process knows it."""
    if not _is_allowed or not warm_process.is_possible():
        return ""
    match words:
        case [program, command, *_] if program == PROGRAM:
            pass
        case [python, "-m", "gpu_orchestrator", command, *_] if python == sys.executable:
            pass
        case [python, "-m", command, *_] if python == sys.executable:
            pass
        case _:
            return ""
    return command if command in warm_process.LOADED else ""


class Waiting:
    """A process that has loaded the modules of one command."""

    def __init__(self, command: str, read_at_start: Mapping[str, str]) -> None:
        others = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_START)}
        self._ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", warm_process.__name__, command, str(theirs.fileno()), ROOM],
                env={
                    **others,
                    **read_at_start,
                    "OPENBLAS_NUM_THREADS": "1",
                },  # with threads it could not fork
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    def start(self, job: Job, streams: Sequence[int]) -> int:
        """Fork, and return the number of the new process."""
        with self._lock:
            body = msgspec.json.encode(job)
            sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
            self._ours.sendmsg([warm_process.LENGTH.pack(len(body))], sent)
            self._ours.sendall(body)
            return warm_process.read_number(self._ours)

    def end(self) -> None:
        self._ours.close()
        self._process.wait()


_running: dict[tuple[str, frozenset[tuple[str, str]]], Waiting] = {}
_starting = threading.Lock()


def _waiting(command: str, environ: Mapping[str, str]) -> Waiting:
    read_at_start = {name: value for name, value in environ.items() if name.startswith(READ_AT_START)}
    key = command, frozenset(read_at_start.items())
    with _starting:
        if key not in _running:
            _running[key] = Waiting(command, read_at_start)
        return _running[key]


@atexit.register
def end() -> None:
    """End the processes that wait."""
    for each in _running.values():
        each.end()
    _running.clear()
