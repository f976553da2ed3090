"""Hears what other processes publish: that the leader has news, letters for workers, ends of tasks."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import redis.exceptions
import structlog

from gpu_orchestrator.adapters.store.store import Store

log = structlog.get_logger()
PAUSE_S = 0.2
_ids = msgspec.msgpack.Decoder(list[str])


class Listener:
    def __init__(
        self,
        store: Store,
        *,
        wake: Callable[[], None],
        letter: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._store, self._wake, self._letter, self._ended = store, wake, letter, ended

    async def run(self) -> None:
        """For ever; what is published while nobody listens is made good by looking."""
        while True:
            with contextlib.suppress(redis.exceptions.RedisError, OSError):
                await self._listen()
            await asyncio.sleep(PAUSE_S)

    async def _listen(self) -> None:
        prefix = self._store.database.prefix
        async with self._store.database.listen() as channel:
            await channel.subscribe(f"{prefix}wake", f"{prefix}ended", f"{prefix}api:{self._store.owner}")
            async for message in channel.listen():
                self._hear(message["channel"].decode().removeprefix(prefix), message["data"])

    def _hear(self, channel: str, data: bytes) -> None:
        if channel == "wake":
            self._wake()
        elif channel == "ended":
            for task in _ids.decode(data):
                self._ended(task)
        else:
            self._letter(data)
