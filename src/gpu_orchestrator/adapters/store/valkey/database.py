"""The connection to Valkey or Redis: runs scripts, translates errors, and checks at start that the server is
safe for tasks. The modules above it deal in tasks and workers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Self, TypeVar, cast

import msgspec
import structlog

from gpu_orchestrator.adapters.store.errors import Full, Loading, Rejected, Unfit, Unreachable
from gpu_orchestrator.adapters.store.records import NewsItem
from gpu_orchestrator.adapters.store.valkey.address import Address, redact
from gpu_orchestrator.adapters.store.valkey.client import Client
from gpu_orchestrator.adapters.store.valkey.dial import info_of
from gpu_orchestrator.adapters.store.valkey.durability import Durability
from gpu_orchestrator.adapters.store.valkey.facts import HIDDEN, Facts, Room, unfit
from gpu_orchestrator.adapters.store.valkey.resp import (
    LEAVE,
    OUT_OF_MEMORY,
    Lost,
    Refused,
    StillLoading,
    command_head,
    encoded_part,
)
from gpu_orchestrator.adapters.store.valkey.scripts import Script, small_write

log = structlog.get_logger()
T = TypeVar("T")
ANSWER_S = 5.0
FOLLOW_S = 10.0
LOOK_EVERY_S, TELL_EVERY_S = 0.02, 2.0
LONG_AGO_MS = 1
FOREIGN_DUMP = "DUMP payload version"
"""In the answer of a server to content in a format that it does not know."""
_encode = msgspec.msgpack.Encoder().encode


class Database:
    """A client of one store. With `strict`, a caller that acknowledges a write calls `begin` before it and
    `durable` after it; without, both do nothing. `replicas` must have the write on disk too."""

    def __init__(
        self, url: str, *, prefix: str = "{gpu-orchestrator}:", strict: bool = False, replicas: int = 0
    ) -> None:
        self.url, self.prefix, self.strict, self.replicas = url, prefix, strict, replicas
        self._client = Client(url, answer_s=ANSWER_S, with_history=strict)
        self._durability = Durability(self._client, prefix, replicas, ANSWER_S) if strict else None
        self._calls: dict[str, bytes] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._durability is not None:
            await self._durability.close()
        await self._client.close()

    @property
    def trouble(self) -> str:
        """Why no write can be made durable now; empty if it can, or need not be."""
        return self._durability.trouble if self._durability is not None else ""

    async def begin(self) -> str:
        """Return the store's present history, for `durable`."""
        if self._durability is None:
            return ""
        try:
            return await self._client.history()
        except (Lost, Refused) as error:
            raise self._unreachable("does not answer", error) from error

    async def durable(self, history: str, at_ms: int | None = None) -> None:
        """Return once everything that ran since `begin` is durable, or what ran until `at_ms` of the store's
        time; raises `NotDurable`, or `Unreachable` if
        it may be lost."""
        if self._durability is None:
            return
        try:
            await self._durability.wait(history, at_ms)
        except (Lost, Refused) as error:
            raise self._unreachable("may have lost a write", error) from error

    async def call(self, script: Script[T], *arguments: Any) -> tuple[tuple[NewsItem, ...], T]:
        packed = _encode(arguments)
        try:
            try:
                answer = await self._client.send(self._call_of(script) + encoded_part(packed))
            except Refused as refused:
                if refused.code != "NOSCRIPT":
                    raise
                # The server does not know the script yet.
                answer = await self._client.execute("EVAL", script.source, 1, self.prefix, packed)
        except (Lost, Refused) as error:
            raise self._unreachable(f"did not run `{script.name}`", error) from error
        return script.decode(cast(bytes, answer))

    async def pop_news(self, most: int) -> list[bytes]:
        """Remove and return news that the leader has not read yet, oldest first."""
        return cast(list[bytes], await self._execute("LPOP", f"{self.prefix}news", most) or [])

    async def publish(self, channel: str, message: bytes) -> None:
        await self._execute("PUBLISH", self.prefix + channel, message)

    async def get(self, name: str) -> bytes | None:
        return cast(bytes | None, await self._execute("GET", self.prefix + name))

    async def set(self, name: str, value: bytes) -> None:
        await self._write("SET", name, value)

    async def delete(self, name: str) -> bool:
        """Return True if there was such a key."""
        return bool(await self._execute("DEL", self.prefix + name))

    async def set_once(self, name: str, value: bytes) -> bytes:
        """Store the value unless there is one; return the one that is there now."""
        await self._write("SET", name, value, "NX")
        return await self.get(name) or value

    async def set_field(self, name: str, field: str, value: str) -> None:
        await self._write("HSET", name, field, value)

    async def get_field(self, name: str, field: str) -> bytes | None:
        return cast(bytes | None, await self._execute("HGET", self.prefix + name, field))

    async def exists(self, *names: str) -> bool:
        """Return True if any of these keys exists."""
        return bool(await self._execute("EXISTS", *(self.prefix + name for name in names)))

    async def scan(self, about: int) -> AsyncGenerator[list[str], None]:
        """Yield the names of all keys, about this many at a time; a name may come twice."""
        cursor = b"0"
        while True:
            pattern = self.prefix.replace("[", "\\[") + "*"
            cursor, found = await self._execute("SCAN", cursor, "MATCH", pattern, "COUNT", about)
            yield [name.decode().removeprefix(self.prefix) for name in found]
            if cursor == b"0":
                return

    async def dump(self, names: Sequence[str]) -> list[tuple[str, int, bytes]]:
        """Return name, expiry in ms or -1, and content of each key that exists."""
        found = await self._execute_all(
            *(
                part
                for name in names
                for part in (("DUMP", self.prefix + name), ("PEXPIRETIME", self.prefix + name))
            )
        )
        rows = zip(names, found[1::2], found[::2], strict=True)
        return [(name, expires_ms, dump) for name, expires_ms, dump in rows if dump is not None]

    async def can_read(self, dump: bytes) -> bool:
        """Return True if the server knows the format of this content. A key that has expired is
        checked, too, and not kept."""
        try:
            await self._execute("RESTORE", self.prefix + "unknown", LONG_AGO_MS, dump, "REPLACE", "ABSTTL")
        except Rejected as error:
            if FOREIGN_DUMP in str(error):
                return False
            raise
        return True

    async def restore(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        await self._execute_all(
            *(
                ("RESTORE", self.prefix + name, max(expires_ms, 0), dump, "REPLACE", "ABSTTL")
                for name, expires_ms, dump in rows
            )
        )

    async def ping(self) -> None:
        await self._execute("PING")

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield messages published on these channels, until the connection is lost."""
        try:
            async for name, data in self._client.listen(*(self.prefix + channel for channel in channels)):
                yield name.removeprefix(self.prefix), data
        except (Lost, Refused) as error:
            raise self._unreachable("ended a subscription", error) from error

    async def follow(self, stream: str, after: str, most: int) -> AsyncGenerator[list[Any], None]:
        """Yield new entries of a stream, over a separate connection, until that is lost."""
        client = self._client.sibling(FOLLOW_S + ANSWER_S)
        key = self.prefix + stream
        command = ("XREAD", "COUNT", most, "BLOCK", int(FOLLOW_S * 1000), "STREAMS", key)
        try:
            while True:
                if found := await client.execute(*command, after):
                    entries = found[0][1]
                    after = entries[-1][0].decode()
                    yield entries
        except (Lost, Refused) as error:
            raise self._unreachable("ended the reading of a stream", error) from error
        finally:
            await client.close()

    async def room(self, wanted: int = 0) -> Room:
        """Return used and usable memory. `wanted` bytes, if set, are the limit, but never above our share of
        the server's maxmemory."""
        return Room.of(info_of(await self._execute("INFO", "memory")), wanted)

    async def facts(self) -> Facts:
        info = info_of(await self._execute("INFO"))
        return Facts.of(info, await self._setting("appendfsync"))

    async def check(self, *, insecure: bool = False) -> Facts:
        """Return the server's facts, or raise `Unfit` with everything that is wrong."""
        facts = await self.facts()
        if wrong := unfit(facts, Address.of(self.url), strict=self.strict, insecure=insecure):
            raise Unfit(f"the store at {redact(self.url)} cannot be used: {'; '.join(wrong)}")
        return facts

    def _call_of(self, script: Script[Any]) -> bytes:
        """Return the encoded call without its arguments, which is the same every time."""
        if (call := self._calls.get(script.name)) is None:
            call = self._calls[script.name] = command_head(5, "EVALSHA", script.digest, 1, self.prefix)
        return call

    async def _write(self, command: str, name: str, *parts: bytes | str) -> None:
        """Write a small key, also if the server has reached its maxmemory: a server must start on such a
        store to free it."""
        await self._execute(*small_write(command, self.prefix + name, *parts))

    async def _execute(self, *parts: bytes | str | int) -> Any:
        try:
            return await self._client.execute(*parts)
        except (Lost, Refused) as error:
            raise self._unreachable("does not answer", error) from error

    async def _execute_all(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        try:
            return await self._client.execute_all(*commands) if commands else []
        except (Lost, Refused) as error:
            raise self._unreachable("does not answer", error) from error

    async def _setting(self, name: str) -> str:
        """Return a setting of the server, or `HIDDEN` if the server refuses to show it, as hosted ones do."""
        try:
            found = await self._client.execute("CONFIG", "GET", name)
        except Refused:
            return HIDDEN
        except Lost as error:
            raise self._unreachable("does not answer", error) from error
        return found[1].decode() if found else HIDDEN

    def _unreachable(self, what: str, error: Lost | Refused) -> Unreachable:
        text = f"the store at {redact(self.url)} {what}: {error}"
        if isinstance(error, StillLoading):
            return Loading(text, error.percent)
        if not isinstance(error, Refused) or error.code in LEAVE:
            return Unreachable(text)
        return Full(text) if error.code == OUT_OF_MEMORY else Rejected(text)


async def wait_until_up(
    database: Database, timeout_s: float, tell: Callable[[str], None] | None = None
) -> None:
    """Wait until the server answers, or raise `Unreachable`. While it reads its file, wait as long as that
    takes, and tell how far it is."""
    waiting = PatientWait(timeout_s, tell)
    while True:
        try:
            return await database.ping()
        except Unreachable as error:
            if waiting.is_over(error):
                raise
            await asyncio.sleep(LOOK_EVERY_S)


class PatientWait:
    """Gives a server `timeout_s` to answer, and all the time it needs while it reads its file: a file of many
    gigabytes takes minutes, and a start given up would begin again from nothing."""

    def __init__(self, timeout_s: float, tell: Callable[[str], None] | None = None) -> None:
        self._timeout_s, self._tell = timeout_s, tell
        self._deadline = self._now() + timeout_s
        self._told = -TELL_EVERY_S

    def is_over(self, error: Unreachable) -> bool:
        """Return True if a server that answers like this need not be waited for."""
        if not isinstance(error, Loading):
            return self._now() > self._deadline
        self._deadline = self._now() + self._timeout_s
        if self._now() - self._told >= TELL_EVERY_S:
            self._told = self._now()
            log.info("the store reads its file", percent=error.percent)
            if self._tell is not None:
                self._tell(error.progress)
        return False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
