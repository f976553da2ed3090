"""RESP2, the protocol of Valkey and Redis: one connection, replies in order.

Commands go out as they come and are answered in order, so a burst of writes costs the server one wait for its
disk.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

Part = bytes | str | int
OUT_OF_MEMORY = "OOM"
LONGEST_SIZE = 24
"""Of the line that tells the size of a bulk string."""
LEAVE = frozenset(
    {
        "READONLY",
        "MASTERDOWN",
        "NOREPLICAS",
        "UNBLOCKED",
        "LOADING",
        "MOVED",
        "ASK",
        "CLUSTERDOWN",
        "BUSY",
        "UNKILLABLE",
    }
)
"""Codes by which a server says that it cannot serve us now, or no longer: a primary that was demoted, one
that reads its file, one that is cut off from its replicas. Another server may have its place by now, also
under the same name."""


class Lost(Exception):
    """The connection could not be opened, or it broke before the reply arrived."""


class StillLoading(Lost):
    """The server reads its file into memory; `percent` of it so far."""

    def __init__(self, percent: float) -> None:
        super().__init__(f"LOADING: it has read {percent:g} % of its file")
        self.percent = percent


class Refused(Exception):
    """The server replied with an error; the message starts with its code, such as NOSCRIPT or NOAUTH."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class _Incomplete(Exception):
    """The rest has not arrived yet."""


class Connection(asyncio.Protocol):
    """`on_message`, once set, gets every message of a subscribed channel. No reply within `answer_s` aborts
    the connection, because later replies could no longer be matched. So does a reply with a code of `LEAVE`,
    after `on_leave` was told."""

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
        self.on_leave: Callable[[str], None] | None = None

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
        if not self._buffer and (value := _only_bulk(data)) is not None:
            reply, _ = self._pending.popleft()
            if not reply.done():  # else the caller has given up
                reply.set_result(value)
            return
        self._buffer += data
        at = 0
        try:
            while at < len(self._buffer):
                value, at = _parse(self._buffer, at)
                self._replied(value)
        except _Incomplete:
            pass
        except Lost as error:  # raised on, the event loop would log a traceback
            self.abort(str(error))
            return
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

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self, why: str = "") -> None:
        """End the connection at once; pending commands fail with this reason."""
        self._lost_because = self._lost_because or why
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
                self.abort(f"no answer within {self._answer_s:g} s")

    def _replied(self, value: Any) -> None:
        if self.on_message is not None and isinstance(value, list) and value[0] == b"message":
            self.on_message(value)
            return
        reply, _ = self._pending.popleft()
        if isinstance(value, Refused) and self.on_leave is not None and value.code in LEAVE:
            self.on_leave(str(value))
        if reply.done():
            return  # the caller has given up
        if isinstance(value, Refused):
            reply.set_exception(value)
        else:
            reply.set_result(value)


def command_head(count: int, *parts: Part) -> bytes:
    """Encode the first parts, or all parts, of a command with `count` parts."""
    raw = (part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return b"*%d\r\n" % count + b"".join(map(encoded_part, raw))


def encoded_part(raw: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _only_bulk(data: bytes) -> bytes | None:
    """Return the bulk string that this data is; None if it is anything else. Most data is the whole answer of
    one script."""
    if data[0] != 0x24:
        return None
    end = data.find(b"\r\n", 0, LONGEST_SIZE)
    if end < 0 or len(data) != int(data[1:end]) + end + 4:
        return None
    return data[end + 2 : -2]


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
