"""The agent's side of a Celery worker: pool processes present tickets here, over a socket of this machine,
and hear how their attempts end.

Ticket --> redeemed at the manager --> its attempt runs, the process waits --> Ended
  |            '--> Void                '--process gone--> it runs on; the redelivered ticket waits instead
  '--the attempt is here, and no process waits for it--> waits for it
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from gpu_orchestrator.api import session, tickets
from gpu_orchestrator.apps.worker.attempts import outcome as outcomes

Key: TypeAlias = tuple[str, int]
SHOWN_MESSAGE = 2000
_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DeskCallbacks:
    """What the agent offers: whether an attempt is here, to cancel it, to send a message, to leave, to answer
    a question about the worker."""

    has: Callable[[Key], bool]
    cancel: Callable[[Key], None]
    send: Callable[[session.Message], None]
    leave: Callable[[], None]
    tell: Callable[[str], dict[str, object]]


class _Pending(NamedTuple):
    visitor: asyncio.StreamWriter
    ticket: tickets.Ticket


class Desk:
    def __init__(self, listening: socket.socket, hello: tickets.Attached, agent: DeskCallbacks) -> None:
        self._listening, self._attached, self._agent = listening, hello, agent
        self._holders: dict[Key, asyncio.StreamWriter] = {}
        self._pending: dict[int, _Pending] = {}
        self._numbers = count(1)

    async def serve(self) -> None:
        server = await asyncio.start_unix_server(
            self._visited, sock=self._listening, limit=tickets.LONGEST_LINE
        )
        async with server:
            await server.serve_forever()

    # --- called by the agent -------------------------------------------------------------------------------

    def joined(self) -> None:
        """Ask again about tickets: the answer may have been lost with the connection."""
        for number, (_, ticket) in self._pending.items():
            self._redeem(number, ticket)

    def assigned(self, key: Key) -> None:
        """Let the process that presented the ticket wait for the attempt."""
        for number, (visitor, ticket) in self._pending.items():
            if (ticket.task, ticket.attempt) == key and key not in self._holders:
                self._holders[key] = visitor
                del self._pending[number]
                return

    def void(self, message: session.Void) -> None:
        if (found := self._pending.pop(message.number, None)) is not None:
            self._say(found.visitor, tickets.Void(message.reason))

    def ended(self, key: Key, ended: session.Outcome, *, counted: bool) -> None:
        if (visitor := self._holders.pop(key, None)) is not None:
            self._say(visitor, _shown(ended, counted=counted))

    def lost(self) -> None:
        """Tell all that wait that the worker no longer has their attempts."""
        for visitor in self._holders.values():
            self._say(visitor, tickets.Lost())
        self._holders.clear()

    # --- visitors ------------------------------------------------------------------------------------------

    async def _visited(self, reader: asyncio.StreamReader, visitor: asyncio.StreamWriter) -> None:
        is_main = False
        try:
            if _is_ours(visitor):
                async for line in reader:
                    message = tickets.read_by_agent(line)
                    is_main = is_main or isinstance(message, tickets.Attach)
                    self._received(message, visitor)
        except (msgspec.MsgspecError, OSError, ValueError) as error:
            log.warning("a message of Celery's processes was not understood", error=str(error))
        except asyncio.CancelledError:
            pass  # the agent ends; asyncio would print a traceback
        finally:
            self._gone(visitor)
            if is_main:
                self._agent.leave()

    def _received(self, message: tickets.ToAgent, visitor: asyncio.StreamWriter) -> None:
        match message:
            case tickets.Ticket():
                self._presented(message, visitor)
            case tickets.Attach():
                self._say(visitor, self._attached)
            case tickets.Leave():
                self._agent.leave()
            case tickets.Revoke(id):
                if (key := tickets.attempt_of(id)) is not None:
                    log.info("a task was revoked in Celery", task_id=key[0], attempt=key[1])
                    self._agent.cancel(key)
            case tickets.Ask(what):
                self._say(visitor, tickets.Told(self._agent.tell(what)))

    def _presented(self, ticket: tickets.Ticket, visitor: asyncio.StreamWriter) -> None:
        key = (ticket.task, ticket.attempt)
        if self._agent.has(key) and key not in self._holders:
            self._holders[key] = visitor
            return
        number = next(self._numbers)
        self._pending[number] = _Pending(visitor, ticket)
        self._redeem(number, ticket)

    def _redeem(self, number: int, ticket: tickets.Ticket) -> None:
        self._agent.send(session.Redeem(number, ticket.task, ticket.attempt, ticket.epoch))

    def _say(self, visitor: asyncio.StreamWriter, message: tickets.ToCelery) -> None:
        if not visitor.is_closing():
            visitor.write(tickets.line(message))

    def _gone(self, visitor: asyncio.StreamWriter) -> None:
        self._holders = {key: each for key, each in self._holders.items() if each is not visitor}
        self._pending = {n: each for n, each in self._pending.items() if each.visitor is not visitor}
        with suppress(OSError):
            visitor.close()


def _is_ours(visitor: asyncio.StreamWriter) -> bool:
    """Return whether a process of this user has connected: others can see the socket's name, too."""
    credentials = visitor.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _shown(ended: session.Outcome, *, counted: bool) -> tickets.Ended:
    status = STATUS[type(ended)]
    error = ended.error.type if isinstance(ended, session.Failed) else ""
    return tickets.Ended(status, counted, error, outcomes.failure_reason(ended)[:SHOWN_MESSAGE])


STATUS: Mapping[type[session.Outcome], str] = {
    session.Done: "completed",
    session.Failed: "failed",
    session.RunnerDied: "died",
    session.Refused: "refused",
    session.Cancelled: "cancelled",
}


def told_of(
    what: str, report: session.Report, running: Iterable[session.Attempt], *, is_joined: bool, epoch: int
) -> dict[str, object]:
    """Return what a management task of Celery asks of a worker: its health, or what it does."""
    ill = {each.index: each.problem for each in report.readings if each.problem}
    if what == "health":
        return {"healthy": is_joined and not ill, "problems": ill}
    attempts = [f"{each.task}.{each.attempt}" for each in running]
    devices = [msgspec.to_builtins(each) for each in report.readings]
    return {"epoch": epoch, "running": attempts, "devices": devices}
