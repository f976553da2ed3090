"""Hears what other processes publish: that the leader has news, letters for workers, ends of
tasks, that keys changed."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
import structlog

from gpu_orchestrator.adapters.store.errors import StoreError
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
        keys: Callable[[], None],
    ) -> None:
        self._store, self._wake, self._letter, self._ended = store, wake, letter, ended
        self._keys = keys

    async def run(self) -> None:
        """For ever; what is published while nobody listens is made good by looking."""
        while True:
            with contextlib.suppress(StoreError):
                async for channel, data in self._store.database.listen(
                    "wake", "ended", "keys", self._letters
                ):
                    self._hear(channel, data)
            await asyncio.sleep(PAUSE_S)

    @property
    def _letters(self) -> str:
        return f"api:{self._store.owner}"

    def _hear(self, channel: str, data: bytes) -> None:
        if channel == "wake":
            self._wake()
        elif channel == "keys":
            self._keys()
        elif channel == "ended":
            for task in _ids.decode(data):
                self._ended(task)
        else:
            self._letter(data)
