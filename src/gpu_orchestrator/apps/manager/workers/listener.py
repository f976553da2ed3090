"""Receives what other processes publish through the store: news for the leader, frames for workers, ended
tasks, changed keys and models, values that a reader waits for."""

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
        forwarded: Callable[[bytes], None],
        ended: Callable[[str], None],
        keys: Callable[[], None],
        models: Callable[[], None],
        values: Callable[[str], None],
    ) -> None:
        self._store, self._wake, self._forwarded, self._ended = store, wake, forwarded, ended
        self._keys, self._models, self._values = keys, models, values

    async def run(self) -> None:
        """Receive messages until cancelled. Messages published while the connection is down are lost; polling
        the store makes up for them."""
        while True:
            with contextlib.suppress(StoreError):
                async for channel, data in self._store.database.listen(
                    "wake", "ended", "keys", "models", "values", self._frame_channel
                ):
                    self._handle(channel, data)
            await asyncio.sleep(PAUSE_S)

    @property
    def _frame_channel(self) -> str:
        return f"api:{self._store.owner}"

    def _handle(self, channel: str, data: bytes) -> None:
        if channel == "wake":
            self._wake()
        elif channel == "keys":
            self._keys()
        elif channel == "models":
            self._models()
        elif channel == "ended":
            for task in _ids.decode(data):
                self._ended(task)
        elif channel == "values":
            for task in _ids.decode(data):
                self._values(task)
        else:
            self._forwarded(data)
