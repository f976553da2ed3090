"""A small client for RESP2, the protocol of Valkey and Redis: one connection, replies in order.

Many callers may send at once. Commands go out as they come and are answered in order, so a burst of writes
costs the server one wait for its disk. The next call after a lost connection opens a new one.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

Part = bytes | str | int
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))


class Lost(Exception):
    """The connection could not be opened, or it broke before the reply arrived."""


class Refused(Exception):
    """The server replied with an error; the message starts with its code, such as NOSCRIPT or NOAUTH."""


class _Incomplete(Exception):
    """The rest has not arrived yet."""


@dataclass(frozen=True, slots=True)
class Address:
    """`redis://`, `rediss://` (TLS) or `unix://`, with user, password and database."""

    path: str
    host: str
    port: int
    tls: bool
    user: str
    password: str
    database: int

    @classmethod
    def of(cls, url: str) -> "Address":
        parts = urlsplit(url)
        is_unix = parts.scheme == "unix"
        database = "" if is_unix else parts.path.strip("/")
        return cls(
            path=parts.path if is_unix else "",
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 6379,
            tls=parts.scheme == "rediss",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=int(database) if database.isdigit() else 0,
        )

    async def open(self, protocol: Callable[[], asyncio.Protocol]) -> Any:
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[1]
        context = ssl.create_default_context() if self.tls else None
        transport, made = await loop.create_connection(protocol, self.host, self.port, ssl=context)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            raw.setsockopt(socket.IPPROTO_TCP, option, value)
        return made


class Connection(asyncio.Protocol):
    """`on_message`, once set, gets every message of a subscribed channel. No reply within `answer_s` aborts
    the connection, because later replies could no longer be matched."""

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._lost_because = ""
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.lost = self._loop.create_future()
        self.on_message: Callable[[list[Any]], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        why = Lost(self._lost_because or str(error or "the server closed the connection"))
        while self._pending:
            reply, _ = self._pending.popleft()
            if not reply.done():
                reply.set_exception(why)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        try:
            while at < len(self._buffer):
                value, at = _parse(self._buffer, at)
                self._replied(value)
        except _Incomplete:
            pass
        del self._buffer[:at]

    def execute(self, *parts: Part) -> "asyncio.Future[Any]":
        return self.send(command_head(len(parts), *parts))

    def send(self, command: bytes) -> "asyncio.Future[Any]":
        """Send a command that is already encoded."""
        if self._transport is None or self._transport.is_closing():
            raise Lost("the connection is closed")
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append((reply, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(self._answer_s, self._check_timeout)
        self._transport.write(command)
        return reply

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_timeout(self) -> None:
        """Abort if the oldest command has timed out. One timer serves all commands, so it costs nothing while
        replies arrive."""
        self._timer = None
        if self._pending:
            left_s = self._pending[0][1] + self._answer_s - self._loop.time()
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._check_timeout)
            else:
                self._lost_because = f"no answer within {self._answer_s:g} s"
                self.abort()

    def _replied(self, value: Any) -> None:
        if self.on_message is not None and isinstance(value, list) and value[0] == b"message":
            self.on_message(value)
            return
        reply, _ = self._pending.popleft()
        if reply.done():
            return  # the caller has given up
        if isinstance(value, Refused):
            reply.set_exception(value)
        else:
            reply.set_result(value)


class Client:
    def __init__(self, url: str, *, answer_s: float) -> None:
        self._address, self._answer_s = Address.of(url), answer_s
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def execute(self, *parts: Part) -> Any:
        """Return the reply to one command; raises `Lost` or `Refused`."""
        return await (await self._connected()).execute(*parts)

    async def send(self, command: bytes) -> Any:
        """Return the reply to a command that is already encoded."""
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
        connection = await self._open()
        messages: asyncio.Queue[list[Any]] = asyncio.Queue()
        connection.on_message = messages.put_nowait
        try:
            for channel in channels:
                await connection.execute("SUBSCRIBE", channel)
            while not connection.lost.done():
                message = asyncio.ensure_future(messages.get())
                await asyncio.wait([message, connection.lost], return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    return
                _, channel_name, data = message.result()
                yield channel_name.decode(), data
        finally:
            connection.abort()

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            await self._connection.lost
            self._connection = None

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and not connection.lost.done():
            return connection
        async with self._opening:
            if self._connection is None or self._connection.lost.done():
                self._connection = await self._open()
            return self._connection

    async def _open(self) -> Connection:
        try:
            async with asyncio.timeout(self._answer_s):
                connection: Connection = await self._address.open(lambda: Connection(self._answer_s))
                try:
                    await self._authenticate(connection)
                except BaseException:
                    connection.abort()  # else every wrong password would leak a socket
                    raise
        except (OSError, TimeoutError) as error:
            raise Lost(str(error) or "no answer to the first command") from error
        return connection

    async def _authenticate(self, connection: Connection) -> None:
        address = self._address
        if address.password:
            user = (address.user,) if address.user else ()
            await connection.execute("AUTH", *user, address.password)
        if address.database:
            await connection.execute("SELECT", address.database)


def command_head(count: int, *parts: Part) -> bytes:
    """Encode the first parts, or all parts, of a command with `count` parts."""
    raw = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return b"*%d\r\n" % count + b"".join(map(encoded_part, raw))


def encoded_part(raw: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _parse(buffer: bytearray, at: int) -> tuple[Any, int]:
    """Parse the value at `at`; return it and the position of the next."""
    end = buffer.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
    kind, line, after = buffer[at], bytes(buffer[at + 1 : end]), end + 2
    match kind:
        case 0x2B:  # +
            return line, after
        case 0x2D:  # -
            return Refused(line.decode(errors="replace")), after
        case 0x3A:  # :
            return int(line), after
        case 0x24:  # $
            return _bulk(buffer, int(line), after)
        case 0x2A:  # *
            return _array(buffer, int(line), after)
    raise Lost(f"the server does not speak RESP: {bytes(buffer[at : at + 20])!r}")


def _bulk(buffer: bytearray, size: int, at: int) -> tuple[bytes | None, int]:
    if size < 0:
        return None, at
    if len(buffer) < at + size + 2:
        raise _Incomplete
    return bytes(buffer[at : at + size]), at + size + 2


def _array(buffer: bytearray, size: int, at: int) -> tuple[list[Any] | None, int]:
    if size < 0:
        return None, at
    values = []
    for _ in range(size):
        value, at = _parse(buffer, at)
        values.append(value)
    return values, at
