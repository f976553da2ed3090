"""The connection to Valkey or Redis: runs scripts, translates errors, and checks at start that the server is
safe for tasks. The modules above it deal in tasks and workers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from gpu_orchestrator.adapters.store.errors import Rejected, Unfit, Unreachable
from gpu_orchestrator.adapters.store.records import NewsItem
from gpu_orchestrator.adapters.store.valkey.resp import Client, Lost, Refused, command_head, encoded_part
from gpu_orchestrator.adapters.store.valkey.scripts import Script

T = TypeVar("T")
OLDEST = (7, 0)
LOCAL = {"", "localhost", "127.0.0.1", "::1"}
SHARE_OF_LIMIT, SHARE_OF_MACHINE = 0.8, 0.5
ANSWER_S = 5.0
FOLLOW_S = 10.0
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that the server uses, and the most that new tasks may fill. The rest is for results and the
    server itself: without free memory it could not even end a task."""

    used: int
    most: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reports of itself. `durable` is empty if every acknowledged write is on disk, else it
    states what is missing."""

    version: str
    eviction: str
    durable: str


class Database:
    """A client of one server. With `strict` a call returns only once its write is on disk (WAITAOF)."""

    def __init__(self, url: str, *, prefix: str = "{gpu-orchestrator}:", strict: bool = False) -> None:
        self.url, self.prefix, self.strict = url, prefix, strict
        self._client = Client(url, answer_s=ANSWER_S)
        self._calls: dict[str, bytes] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def call(self, script: Script[T], *arguments: Any) -> tuple[tuple[NewsItem, ...], T]:
        packed = _encode(arguments)
        try:
            answer = await self._evaluate(script, packed)
        except (Lost, Refused) as error:
            kind = Rejected if isinstance(error, Refused) else Unreachable
            raise kind(f"the store at {redact(self.url)} did not run `{script.name}`: {error}") from error
        return script.decode(answer)

    async def pop_news(self, most: int) -> list[bytes]:
        """Remove and return news that the leader has not read yet, oldest first."""
        return cast(list[bytes], await self._execute("LPOP", f"{self.prefix}news", most) or [])

    async def publish(self, channel: str, message: bytes) -> None:
        await self._execute("PUBLISH", self.prefix + channel, message)

    async def get(self, name: str) -> bytes | None:
        return cast(bytes | None, await self._execute("GET", self.prefix + name))

    async def set(self, name: str, value: bytes) -> None:
        await self._execute("SET", self.prefix + name, value)

    async def delete(self, name: str) -> bool:
        """Return True if there was such a key."""
        return bool(await self._execute("DEL", self.prefix + name))

    async def set_field(self, name: str, field: str, value: str) -> None:
        await self._execute("HSET", self.prefix + name, field, value)

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
            raise Unreachable(f"the store at {redact(self.url)} ended a subscription: {error}") from error

    async def follow(self, stream: str, after: str, most: int) -> AsyncGenerator[list[Any], None]:
        """Yield new entries of a stream, over a separate connection, until that is lost."""
        client = Client(self.url, answer_s=FOLLOW_S + ANSWER_S)
        key = self.prefix + stream
        command = ("XREAD", "COUNT", most, "BLOCK", int(FOLLOW_S * 1000), "STREAMS", key)
        try:
            while True:
                if found := await client.execute(*command, after):
                    entries = found[0][1]
                    after = entries[-1][0].decode()
                    yield entries
        except (Lost, Refused) as error:
            raise Unreachable(
                f"the store at {redact(self.url)} ended the reading of a stream: {error}"
            ) from error
        finally:
            await client.close()

    async def room(self, wanted: int = 0) -> Room:
        """Return used and usable memory. `wanted` bytes, if set, are the limit, but never above our share of
        the server's maxmemory."""
        info = _info(await self._execute("INFO", "memory"))
        limit, machine = int(info.get("maxmemory", 0)), int(info.get("total_system_memory", 0))
        most = int(limit * SHARE_OF_LIMIT) or wanted or int(machine * SHARE_OF_MACHINE)
        return Room(int(info.get("used_memory", 0)), min(wanted, most) if wanted else most)

    async def facts(self) -> Facts:
        info = _info(await self._execute("INFO"))
        fsync = await self._setting("appendfsync")
        version = info.get("valkey_version") or info.get("redis_version", "0")
        return Facts(version, info.get("maxmemory_policy", ""), _missing(info, fsync))

    async def check(self, *, insecure: bool = False) -> Facts:
        """Return the server's facts, or raise `Unfit` with everything that is wrong."""
        facts = await self.facts()
        wrong = [*_too_old(facts), *_evicts(facts), *([] if insecure else _unprotected(self.url))]
        if self.strict and "append-only file" in facts.durable:
            wrong.append(f"DURABILITY=strict needs an append-only file; {facts.durable}")
        if wrong:
            raise Unfit(f"the store at {redact(self.url)} cannot be used: {'; '.join(wrong)}")
        return facts

    async def _evaluate(self, script: Script[Any], packed: bytes) -> bytes:
        if self.strict:
            return await self._evaluate_on_disk(script, packed)
        try:
            answer = await self._client.send(self._call_of(script) + encoded_part(packed))
        except Refused as refused:
            if not str(refused).startswith("NOSCRIPT"):
                raise
            # The server does not know the script yet.
            answer = await self._client.execute("EVAL", script.source, 1, self.prefix, packed)
        return cast(bytes, answer)

    def _call_of(self, script: Script[Any]) -> bytes:
        """Return the encoded call without its arguments, which is the same every time."""
        if (call := self._calls.get(script.name)) is None:
            call = self._calls[script.name] = command_head(5, "EVALSHA", script.digest, 1, self.prefix)
        return call

    async def _evaluate_on_disk(self, script: Script[Any], packed: bytes) -> bytes:
        answer, on_disk = await self._client.execute_all(
            ("EVAL", script.source, 1, self.prefix, packed), ("WAITAOF", 1, 0, int(ANSWER_S * 1000))
        )
        if not on_disk[0]:
            raise Lost("the write is not on disk yet")
        return cast(bytes, answer)

    async def _execute(self, *parts: bytes | str | int) -> Any:
        try:
            return await self._client.execute(*parts)
        except (Lost, Refused) as error:
            raise Unreachable(f"the store at {redact(self.url)} does not answer: {error}") from error

    async def _execute_all(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        try:
            return await self._client.execute_all(*commands) if commands else []
        except (Lost, Refused) as error:
            raise Unreachable(f"the store at {redact(self.url)} does not answer: {error}") from error

    async def _setting(self, name: str) -> str:
        """Return a setting of the server; empty if the server refuses to show it, as hosted ones do."""
        try:
            found = await self._client.execute("CONFIG", "GET", name)
        except Refused:
            return ""
        except Lost as error:
            raise Unreachable(f"the store at {redact(self.url)} does not answer: {error}") from error
        return found[1].decode() if found else ""


async def wait_until_up(database: Database, timeout_s: float) -> None:
    """Wait until the server answers (it may still be reading its file), or raise `Unreachable`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            return await database.ping()
        except Unreachable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)


def redact(url: str) -> str:
    """Return the address without its password."""
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@")


def _too_old(facts: Facts) -> list[str]:
    numbers = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if numbers >= OLDEST:
        return []
    return [f"it is version {facts.version}; {'.'.join(map(str, OLDEST))} or newer is needed"]


def _evicts(facts: Facts) -> list[str]:
    if facts.eviction in ("", "noeviction"):
        return []
    return [f"maxmemory-policy is {facts.eviction}, which discards tasks; set it to noeviction"]


def _unprotected(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.scheme in ("unix", "rediss") or (parts.hostname or "") in LOCAL or parts.password:
        return []
    advice = "set REDIS_PASSWORD, use rediss://, or pass --insecure-dev"
    return [f"{parts.hostname} is remote and requires no password; {advice}"]


def _info(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, separator, value in pairs if separator}


def _missing(info: dict[str, str], fsync: str) -> str:
    if info.get("aof_enabled") != "1":
        return "no append-only file: a crash loses what was acknowledged since the last save"
    if fsync not in ("", "always"):
        return f"appendfsync is {fsync}: a crash loses the last second or more"
    return ""
