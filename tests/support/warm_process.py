"""The process behind `warm`: loads the modules of one command, then forks for each start that is ordered.

A fork becomes a child of the process that ordered it (CLONE_PARENT), which can wait for it as `subprocess`
does. Python offers no such fork: the system call is made here, with what Python does around `os.fork`.
"""

import array
import ctypes
import gc
import importlib
import io
import os
import platform
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

LOADED = {
    "agent": ("gpu_orchestrator.cli.agent",),
    "operator": ("gpu_orchestrator.cli.operator",),
    "scheduler": ("gpu_orchestrator.cli.scheduler",),
    "server": ("gpu_orchestrator.cli.server", "gpu_orchestrator.cli.host", "uvloop"),
    "tests.support.told_surroundings": ("tests.support.told_surroundings",),
    "up": ("gpu_orchestrator.cli.up", "gpu_orchestrator.cli.local", "uvloop"),
    "webhook": ("gpu_orchestrator.cli.webhook",),
    "tests.support.elector_process": ("tests.support.elector_process",),
    "tests.support.hurried_operator": ("tests.support.hurried_operator", "gpu_orchestrator.cli.operator"),
    "worker": ("gpu_orchestrator.cli.workers", "gpu_orchestrator.apps.worker.main", "uvloop"),
}
"""What the program loads when it runs a command."""
PROGRAM = "gpu_orchestrator.cli.main"
LENGTH = struct.Struct("<I")
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE_PARENT = 0x8000
ROOM = "." * 4000
"""An argument that leaves room for others, see `_show`."""


class Job(msgspec.Struct, array_like=True):
    """What `subprocess.Popen` was asked for."""

    words: list[str]
    folder: str
    environ: dict[str, str]
    new_session: bool
    ignores_interrupt: bool


def is_possible() -> bool:
    """Tell whether this machine's system call is known. Under `coverage` a process must start by itself."""
    return CLONE is not None and sys.platform == "linux" and "COVERAGE_PROCESS_CONFIG" not in os.environ


def read_number(connection: socket.socket) -> int:
    return int(LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))[0])


def main() -> None:
    command, number, _ = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    module = importlib.import_module(command if "." in command else PROGRAM)
    for each in LOADED[command]:
        importlib.import_module(each)
    gc.freeze()
    gc.enable()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "a fork would lack the other threads"
    with socket.socket(fileno=int(number)) as orders:
        job = _serve(orders)
    if job is not None:
        _become(job)
        module.main()


def _serve(orders: socket.socket) -> Job | None:
    """Fork for every order. Return the order in a child; return nothing when nobody orders any more."""
    while True:
        streams = array.array("i")
        got, sent, _, _ = orders.recvmsg(LENGTH.size, socket.CMSG_SPACE(3 * streams.itemsize))
        if not got:
            return None
        for _, _, data in sent:
            streams.frombytes(data)
        body = orders.recv(LENGTH.unpack(got)[0], socket.MSG_WAITALL)
        if child := _fork():
            for given in streams:
                os.close(given)
            orders.sendall(LENGTH.pack(child))
            continue
        for target, given in enumerate(streams):
            os.dup2(given, target)
            os.close(given)
        return msgspec.json.decode(body, type=Job)


def _fork() -> int:
    """Fork a child of our parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    child = int(ctypes.PyDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if child == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError("the system call clone failed")
    return child


def _become(job: Job) -> None:
    """Take over what a process gets from the one that starts it."""
    if job.new_session:
        os.setsid()
    if not job.ignores_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _renew_streams()
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environ)
    is_module = job.words[1] == "-m"
    sys.argv = job.words[2:] if is_module else job.words
    sys.path.insert(0, job.folder if is_module else str(Path(job.words[0]).parent))
    _show(job.words)


def _renew_streams() -> None:
    """Open the standard streams again: Python looked at what was behind the old ones."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        buffer = raw if old.write_through else io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        new = io.TextIOWrapper(
            buffer,
            old.encoding,
            old.errors,
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _show(words: Sequence[str]) -> None:
    """Let ps show these words: write them where the kernel finds those of the process that forked."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
