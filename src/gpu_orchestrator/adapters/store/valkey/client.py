"""A client of one store: one connection for all callers, opened again whenever it is lost or its server can
no longer serve us.

Many callers may send at once. The next call after a lost connection opens a new one, and looks up where the
primary is now; all callers wait for the same attempt, and share its failure for a moment.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from weakref import WeakSet

from gpu_orchestrator.adapters.store.valkey.address import Address, Place
from gpu_orchestrator.adapters.store.valkey.dial import Dialer, Opened
from gpu_orchestrator.adapters.store.valkey.resp import Connection, Lost, Part, Refused, StillLoading
from gpu_orchestrator.adapters.store.valkey.sentinel import SentinelWatch
from gpu_orchestrator.adapters.store.valkey.subscription import messages

PAUSE_S = 0.02
"""How long a failure to connect is repeated to other callers before the next attempt."""


class Client:
    """`with_history`: read the history of each server that is connected to."""

    def __init__(self, url: str, *, answer_s: float, with_history: bool = False) -> None:
        self._dialer, self._answer_s = Dialer(Address.of(url), with_history), answer_s
        self._opened: Opened | None = None
        self._opening: asyncio.Task[Opened] | None = None
        self._besides: WeakSet[Connection] = WeakSet()
        self._siblings: WeakSet[Client] = WeakSet()
        self._parent: Client | None = None
        self._watch = SentinelWatch(self._dialer, self._switched) if self._dialer.address.primary else None

    def sibling(self, answer_s: float) -> "Client":
        """Return a client with a connection of its own, which is left together with this one's."""
        made = Client.__new__(Client)
        made._dialer, made._answer_s, made._watch = self._dialer, answer_s, None
        made._opened, made._opening = None, None
        made._besides, made._siblings, made._parent = WeakSet(), WeakSet(), self
        self._siblings.add(made)
        return made

    async def execute(self, *parts: Part) -> Any:
        """Return the reply to one command; raises `Lost` or `Refused`."""
        return await (await self._connected()).execute(*parts)

    def send(self, command: bytes) -> Awaitable[Any]:
        """Return the reply to a command that is already encoded."""
        if self._opened is not None:
            try:
                return self._opened.connection.send(command)
            except Lost:  # it is closed; the next one is opened below
                pass
        return self._connect_and_send(command)

    async def _connect_and_send(self, command: bytes) -> Any:
        return await (await self._connected()).send(command)

    async def execute_all(self, *commands: tuple[Part, ...]) -> list[Any]:
        """Return the replies to several commands, with no other command between them on this connection."""
        connection = await self._connected()
        replies: list[asyncio.Future[Any]] = []
        try:
            replies.extend(connection.execute(*parts) for parts in commands)
        except Lost:  # one was not sent, so the replies to the others are not awaited
            for reply in replies:
                reply.cancel()
            raise
        return await asyncio.gather(*replies)

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield messages of these channels, over a separate connection, until that is lost."""
        connection = (await self._dialer.open(self._answer_s)).connection
        self._besides.add(connection)
        async for message in messages(connection, *channels):
            yield message

    async def history(self) -> str:
        """Return the history of the server that the next command goes to; connects if there is none."""
        await self._connected()
        return self._opened.history if self._opened else ""

    def leave(self, why: str) -> None:
        """End all connections: another server is, or may be, the primary. The next call looks for it."""
        opened, self._opened = self._opened, None
        for connection in ([opened.connection] if opened else []) + list(self._besides):
            connection.abort(why)
        for sibling in self._siblings:
            sibling.leave(why)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
        if self._opening is not None:
            self._opening.cancel()
        if self._opened is not None:
            connection, self._opened = self._opened.connection, None
            connection.abort()
            await connection.lost

    async def _connected(self) -> Connection:
        opened = self._opened
        if opened is not None and opened.connection.is_open:
            return opened.connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._attempted)
        try:
            return (await asyncio.shield(self._opening)).connection
        except StillLoading as error:
            raise StillLoading(error.percent) from None
        except (Lost, Refused) as error:  # of its own for each caller: it collects where it was raised
            raise type(error)(str(error)) from None

    async def _open(self) -> Opened:
        if self._watch is not None:
            self._watch.start()
        opened = await self._dialer.open(self._answer_s)
        opened.connection.on_leave = (self._parent or self).leave
        self._opened = opened
        return opened

    def _attempted(self, attempt: "asyncio.Task[Opened]") -> None:
        """Let the next caller try again: at once, or a moment after a failure."""
        if attempt.cancelled() or attempt.exception() is None:
            self._opening = None
        else:
            asyncio.get_running_loop().call_later(PAUSE_S, self._forget_attempt)

    def _forget_attempt(self) -> None:
        self._opening = None

    def _switched(self, place: Place) -> None:
        if self._opened is None or self._opened.place != place:
            self.leave(f"Sentinel says that the primary is at {place} now")
