"""The parent of one runner: ends it, with every process it ever started, whatever happens to the agent.

    agent ──lifeline──> keeper ──fork──> runner ──> its children
      └───────socket pair and bell─────────┘

The keeper ends the runner when the agent says so, when the agent is gone (the lifeline closes), when its
lease is over and nobody prolonged it (also while the agent is stopped), and when the runner itself ends but
left children behind. Orphans of the runner become the keeper's children, so none is missed. It then ends as
the runner did: same exit code, same signal.
"""

import ctypes
import os
import resource
import select
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.parent_death import end_with_parent

PR_SET_CHILD_SUBREAPER = 36
LONGEST_SLEEP_S = 1.0

_ORDER = struct.Struct("<cd")
LEASE, TERM, KILL = b"l", b"t", b"k"


def order(kind: bytes, until: float = 0.0) -> bytes:
    """What the agent writes to the lifeline; `until` is for `LEASE`, by `clock.elapsed_s()`."""
    return _ORDER.pack(kind, until)


def main() -> None:
    lifeline, channel, bell = map(int, sys.argv[1:])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reaped = _told_of_deaths()
    keeper = os.getpid()
    runner = os.fork()
    if runner == 0:
        os.close(lifeline)
        _become_runner(keeper, channel, bell)
    os.close(channel)
    os.close(bell)
    _close_output()
    _end_as(_watch(runner, lifeline, reaped))


def _become_runner(keeper: int, channel: int, bell: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    end_with_parent(keeper, signal.SIGKILL)
    from gpu_orchestrator.apps.worker.runners import runner

    runner.main(channel, bell)
    os._exit(0)


def _close_output() -> None:
    """The agent must see the end of the runner's output when the runner ends, not when we do."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _watch(runner: int, lifeline: int, reaped: int) -> int:
    """Waits until the runner ended or has to; gives its exit status once none of its processes is left."""
    poll = select.poll()
    poll.register(reaped, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    until = float("inf")
    while True:
        ready = dict(poll.poll(max(min(until - elapsed_s(), LONGEST_SLEEP_S), 0) * 1000))
        if reaped in ready and (status := _reap(runner, reaped)) is not None:
            return _end(runner, status)
        kind, until = _last_order(lifeline, until) if lifeline in ready else (LEASE, until)
        if kind == KILL or elapsed_s() >= until:
            return _end(runner, 0)
        if kind == TERM:
            _signal_group(runner, signal.SIGTERM)


def _told_of_deaths() -> int:
    """A descriptor that can be read when a child died. Orphans of the runner are our children too."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _reap(runner: int, reaped: int) -> int | None:
    """Takes leave of all children that died; the exit status of the runner if it was among them."""
    os.read(reaped, 4096)
    found: int | None = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == runner else found
    return found


def _last_order(lifeline: int, until: float) -> tuple[bytes, float]:
    """The strongest order waiting and the newest lease; the agent's death is an order to kill."""
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
    """Kills and reaps until no descendant is left: a child may start another while it is being killed."""
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
    """All processes below this one."""
    found: list[int] = []
    look_at = [pid]
    while look_at:
        children = _children(look_at.pop())
        found += children
        look_at += children
    return found


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return _children_by_parent(pid) if Path(f"/proc/{pid}").exists() else []


def _children_by_parent(pid: int) -> list[int]:
    """For kernels that keep no list of children, and for a thread that ended while we looked."""
    children: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and _parent(folder) == pid:
                children.append(int(folder.name))
    return children


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _end_as(status: int) -> None:
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
