"""The agent as a child of Celery's main process: `gpu-orchestrator worker` with a socket for tickets.

starting --Attached--> attached --leave--> drains --> ended        killed with its parent, by the kernel
"""

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.api import tickets
from gpu_orchestrator.apps.celery_worker.visit import DESK, AgentGone, Visit

OPTIONS = "GPU_ORCHESTRATOR_WORKER_OPTIONS"
END_S = 10.0


class AgentProcess:
    """`code` is its exit code, once it has ended."""

    def __init__(self, name: str, max_concurrent: int) -> None:
        desk = f"gpu-orchestrator-desk-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(f"\0{desk}")
            listening.listen(128)
            self._process = subprocess.Popen(
                command(listening.fileno(), name, max_concurrent),
                stdin=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
                start_new_session=True,  # Ctrl-C in the terminal is for Celery, which lets the agent leave
                preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGKILL),
            )
        os.environ[DESK] = desk
        self._visit = Visit(desk)
        self.attached = self._attach()

    def _attach(self) -> tickets.Attached:
        """Wait until the agent is ready. If it cannot start, it has said why, and Celery ends as it did."""
        try:
            self._visit.say(tickets.Attach())
            message = self._visit.hear()
        except OSError:
            raise SystemExit(self._process.wait() or 1) from None
        assert isinstance(message, tickets.Attached)  # noqa: S101
        return message

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended` with the exit code, from a thread, when the agent has ended."""
        Thread(target=self._watched, args=(ended,), name="agent", daemon=True).start()

    def _watched(self, ended: Callable[[int], None]) -> None:
        with suppress(AgentGone):
            while True:
                self._visit.hear()
        ended(self._process.wait())

    def leave(self) -> None:
        """Let the agent finish what runs; the second call ends it at once."""
        with suppress(OSError):
            self._visit.say(tickets.Leave())

    def revoke(self, id: str) -> None:  # noqa: A002
        with suppress(OSError):
            self._visit.say(tickets.Revoke(id))

    def end(self) -> None:
        """Wait for the end of the agent, which was asked to leave; kill it if it takes long."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Close the connection in a process that was forked: the agent must see it end with its parent."""
        self._visit.close_in_fork()


def command(desk: int, name: str, max_concurrent: int) -> list[str]:
    """Return the command of the agent. What the operator gives by OPTIONS wins over name and number."""
    options = shlex.split(os.environ.get(OPTIONS, ""))
    own: Sequence[tuple[str, str]] = (("--name", name), ("--max-concurrent", str(max_concurrent or "")))
    given = [word for option, value in own if value and not _has(options, option) for word in (option, value)]
    # -P: a random.py in the current folder must not take the place of Python's own.
    program = [sys.executable, "-P", "-m", "gpu_orchestrator", "worker", "--desk", str(desk)]
    return [*program, *given, *options]


def _has(options: Sequence[str], option: str) -> bool:
    return any(each == option or each.startswith(f"{option}=") for each in options)
