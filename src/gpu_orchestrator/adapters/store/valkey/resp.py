"""A small client of the protocol that Valkey and Redis speak (RESP2): one connection, answers in order.

Many callers may ask at once; what they ask goes out as it comes and is answered in turn, so that a burst of
writes costs the server one wait for its disk. Lost connections are made anew by whoever asks next.
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
    """No connection, or it broke before the answer came."""


class Refused(Exception):
    """The server said no; the message begins with its code, such as NOSCRIPT or NOAUTH."""


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
    """`hear`, once set, gets every message that answers no question: those of subscribed channels. A question
    without an answer for `answer_s` ends the connection: what it still answers would be for nobody."""

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._loop = asyncio.get_running_loop()
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._why = ""
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.lost = self._loop.create_future()
        self.hear: Callable[[list[Any]], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        if self._watch is not None:
            self._watch.cancel()
        why = Lost(self._why or str(error or "the server closed the connection"))
        while self._asked:
            asked, _ = self._asked.popleft()
            if not asked.done():
                asked.set_exception(why)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        try:
            while at < len(self._buffer):
                value, at = _parse(self._buffer, at)
                self._answered(value)
        except _Incomplete:
            pass
        del self._buffer[:at]

    def ask(self, *parts: Part) -> "asyncio.Future[Any]":
        return self.send(beginning(len(parts), *parts))

    def send(self, command: bytes) -> "asyncio.Future[Any]":
        """A command as it goes over the wire."""
        if self._transport is None or self._transport.is_closing():
            raise Lost("the connection is closed")
        asked: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append((asked, self._loop.time()))
        if self._watch is None:
            self._watch = self._loop.call_later(self._answer_s, self._look)
        self._transport.write(command)
        return asked

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """One timer for all questions: it costs nothing while answers come."""
        self._watch = None
        if self._asked:
            left_s = self._asked[0][1] + self._answer_s - self._loop.time()
            if left_s > 0:
                self._watch = self._loop.call_later(left_s, self._look)
            else:
                self._why = f"no answer within {self._answer_s:g} s"
                self.abort()

    def _answered(self, value: Any) -> None:
        if self.hear is not None and isinstance(value, list) and value[0] == b"message":
            self.hear(value)
            return
        asked, _ = self._asked.popleft()
        if asked.done():
            return  # whoever asked has given up
        if isinstance(value, Refused):
            asked.set_exception(value)
        else:
            asked.set_result(value)


class Client:
    def __init__(self, url: str, *, answer_s: float) -> None:
        self._address, self._answer_s = Address.of(url), answer_s
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()

    async def ask(self, *parts: Part) -> Any:
        """The answer to one command; raises `Lost` or `Refused`."""
        return await (await self._connected()).ask(*parts)

    async def send(self, command: bytes) -> Any:
        """The answer to a command as it goes over the wire."""
        return await (await self._connected()).send(command)

    async def ask_all(self, *commands: tuple[Part, ...]) -> list[Any]:
        """Answers to several commands, which nothing comes between on this connection."""
        connection = await self._connected()
        asked: list[asyncio.Future[Any]] = []
        try:
            asked.extend(connection.ask(*parts) for parts in commands)
        except Lost:  # by one; the others of them nobody waits for
            for future in asked:
                future.cancel()
            raise
        return await asyncio.gather(*asked)

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """What is published on these channels, on a connection of its own, until that is lost."""
        connection = await self._open()
        heard: asyncio.Queue[list[Any]] = asyncio.Queue()
        connection.hear = heard.put_nowait
        try:
            for channel in channels:
                await connection.ask("SUBSCRIBE", channel)
            while not connection.lost.done():
                message = asyncio.ensure_future(heard.get())
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
                    await self._greet(connection)
                except BaseException:
                    connection.abort()  # nobody else would: a wrong password must not cost a socket each time
                    raise
        except (OSError, TimeoutError) as error:
            raise Lost(str(error) or "no answer to the first word") from error
        return connection

    async def _greet(self, connection: Connection) -> None:
        address = self._address
        if address.password:
            user = (address.user,) if address.user else ()
            await connection.ask("AUTH", *user, address.password)
        if address.database:
            await connection.ask("SELECT", address.database)


def beginning(count: int, *parts: Part) -> bytes:
    """Of a command of so many parts: these first ones, or all of them."""
    raw = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return b"*%d\r\n" % count + b"".join(map(packed_part, raw))


def packed_part(raw: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _parse(buffer: bytearray, at: int) -> tuple[Any, int]:
    """One value that begins at `at`, and where the next begins."""
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
