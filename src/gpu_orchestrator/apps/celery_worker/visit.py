"""A visit at the agent's desk: one connection, messages as lines of JSON. Blocks, as Celery's tasks do."""

import os
import socket
from types import TracebackType
from typing import Self

from gpu_orchestrator.api import tickets

DESK = "CELERY_WORKER_DESK"
"""The variable in which pool processes find the name of the socket."""


class AgentGone(ConnectionError):
    """The agent of this worker has ended; the worker ends, too."""


class Visit:
    def __init__(self, desk: str = "") -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(f"\0{desk or os.environ[DESK]}")
        except (OSError, KeyError) as error:
            self._socket.close()
            raise AgentGone("no agent runs here; start it with `celery worker`") from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def say(self, message: tickets.ToAgent) -> None:
        self._socket.sendall(tickets.line(message))

    def hear(self) -> tickets.ToCelery:
        """Wait for the next message; raise `AgentGone` if none can come."""
        try:
            line = self._lines.readline()
        except OSError as error:
            raise AgentGone(str(error)) from error
        if not line:
            raise AgentGone("the agent has ended")
        message: tickets.ToCelery = tickets.read_by_celery(line)
        return message

    def close_in_fork(self) -> None:
        """Close the connection in a forked process. A thread of its parent may have been reading: the lock of
        the reader then stays taken here."""
        os.close(self._socket.detach())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
