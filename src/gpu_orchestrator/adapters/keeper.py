"""The parent of one child: ends it and every process it ever started, whatever happens to the agent.

    agent ──lifeline──> keeper ──fork──> child ──> its children

The child is a program (`program_command`), or what an app lets it become (`keep`), such as a runner of the
worker. The keeper ends it when the agent orders it, when the agent is gone (the lifeline closes), and when
the lease expires without a renewal (also while the agent is stopped by a signal). When the child ends by
itself, the keeper ends the children it left behind. Orphans of the child become the keeper's children, so
none is missed. The keeper then ends as the child did: with the same exit code or the same signal.
"""

import ctypes
import os
import resource
import select
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpu_orchestrator.adapters import process_rights
from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.parent_death import end_with_parent

PR_SET_CHILD_SUBREAPER = 36
LONGEST_SLEEP_S = 1.0
COULD_NOT_RUN = 127
SAFE_PATH = "-P"
"""Option of Python: do not search the current folder first. A random.py there would take the place of
Python's own."""

_ORDER = struct.Struct("<cd")
LEASE, TERM, KILL = b"l", b"t", b"k"


def order(kind: bytes, until: float = 0.0) -> bytes:
    """Encode an order that the agent writes to the lifeline; `until` is for LEASE, by `clock.elapsed_s()`."""
    return _ORDER.pack(kind, until)


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as keeper: this one, or one of an app that calls `keep`."""
    return [sys.executable, SAFE_PATH, "-m", module, *arguments]


def program_command(lifeline: int, folder: str, user: str, *program: str) -> list[str]:
    """Return the command with which a keeper runs a program. When the agent is gone or has closed the
    lifeline, the keeper also removes the folder, if one is named. `user` is an encoded user, or empty."""
    return command(__name__, str(lifeline), folder, user, *program)


def main() -> None:
    """Keep a program."""
    lifeline, folder, user, *program = sys.argv[1:]
    status = keep(int(lifeline), (), user, lambda: _execute(program))
    if folder and _is_cut(int(lifeline)):
        shutil.rmtree(folder, ignore_errors=True)
    end_as(status)


def keep(lifeline: int, child_only: tuple[int, ...], user: str, become: Callable[[], object]) -> int:
    """Fork, let the child become what it is for, with the rights of `user`, and watch it; return its exit
    status."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child_exits = _child_exit_pipe()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        _leave_keeper(keeper, user)
        become()
        os._exit(0)
    for descriptor in child_only:
        os.close(descriptor)
    _close_output()
    return _watch(child, lifeline, child_exits)


def _is_cut(lifeline: int) -> bool:
    poll = select.poll()
    poll.register(lifeline, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _leave_keeper(keeper: int, user: str) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    if user:
        process_rights.become(user)  # before the next line: a change of user undoes that
    end_with_parent(keeper, signal.SIGKILL)


def _execute(program: list[str]) -> None:
    try:
        os.execvp(program[0], program)  # noqa: S606  (a list, and no shell)
    finally:
        os._exit(COULD_NOT_RUN)


def _close_output() -> None:
    """Close the keeper's output, so that the agent sees the runner's output end when the runner ends."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _watch(runner: int, lifeline: int, child_exits: int) -> int:
    """Wait until the runner has ended or must end. Return its exit status once no process of it is left."""
    poll = select.poll()
    poll.register(child_exits, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    until = float("inf")
    while True:
        ready = dict(poll.poll(max(min(until - elapsed_s(), LONGEST_SLEEP_S), 0) * 1000))
        if child_exits in ready and (status := _reap(runner, child_exits)) is not None:
            return _end(runner, status)
        kind, until = _last_order(lifeline, until) if lifeline in ready else (LEASE, until)
        if kind == KILL or elapsed_s() >= until:
            return _end(runner, 0)
        if kind == TERM:
            _signal_group(runner, signal.SIGTERM)


def _child_exit_pipe() -> int:
    """Return a descriptor that is readable when a child has died. Orphans of the runner are children too."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _reap(runner: int, child_exits: int) -> int | None:
    """Reap all children that died. Return the runner's exit status if it is among them, else None."""
    os.read(child_exits, 4096)
    found: int | None = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == runner else found
    return found


def _last_order(lifeline: int, until: float) -> tuple[bytes, float]:
    """Return the strongest pending order and the newest lease. The agent's death counts as KILL."""
    data = os.read(lifeline, _ORDER.size * 64)
    if not data:
        return KILL, until
    kinds = {LEASE}
    for kind, value in _ORDER.iter_unpack(data):
        kinds.add(kind)
        until = value if kind == LEASE else until
    return next(kind for kind in (KILL, TERM, LEASE) if kind in kinds), until


def _signal_group(runner: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(runner, number)


def _end(runner: int, status: int) -> int:
    """Kill and reap until no descendant is left: a child may start another one while it is being killed."""
    _signal_group(runner, signal.SIGKILL)
    while True:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        status = ended if pid == runner else status


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below this one."""
    found: list[int] = []
    to_visit = [pid]
    while to_visit:
        children = _children(to_visit.pop())
        found += children
        to_visit += children
    return found


def has_old_orphan(keeper: int, runner: int, age_s: float) -> bool:
    """Return whether a process that lost its parent below the runner is at least this old."""
    orphans = set(_children(keeper)) - {runner}
    return any(_age_s(pid) >= age_s for pid in orphans)


def _age_s(pid: int) -> float:
    """Return how long a process has run. One that has just ended counts as old."""
    with suppress(OSError):
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        return up_s - ticks / os.sysconf("SC_CLK_TCK")
    return float("inf")


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return _children_by_parent(pid) if Path(f"/proc/{pid}").exists() else []


def _children_by_parent(pid: int) -> list[int]:
    """Return a process's children. For kernels without a list of them, or if a thread ended meanwhile."""
    children: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and _parent(folder) == pid:
                children.append(int(folder.name))
    return children


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


if __name__ == "__main__":
    main()
