"""Listen to the Sentinels for `+switch-master`, so that a demoted primary is left at once: it may still
accept writes that nobody will ever see.

Each Sentinel is listened to: the one that would tell may be the one that is cut off.
"""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.store.valkey.address import Place
from gpu_orchestrator.adapters.store.valkey.dial import SENTINEL_S, Dialer
from gpu_orchestrator.adapters.store.valkey.resp import Lost, Refused
from gpu_orchestrator.adapters.store.valkey.subscription import messages

log = structlog.get_logger()
CHANNEL = "+switch-master"
PAUSE_S = 1.0


class SentinelWatch:
    def __init__(self, dialer: Dialer, switched: Callable[[Place], None]) -> None:
        self._dialer, self._switched = dialer, switched
        self._listening: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Listen from now on; a second call changes nothing."""
        if not self._listening:
            loop = asyncio.get_running_loop()
            self._listening = [loop.create_task(self._listen(each)) for each in self._dialer.address.places]

    async def close(self) -> None:
        for each in self._listening:
            each.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        self._listening = []

    async def _listen(self, sentinel: Place) -> None:
        while True:
            with contextlib.suppress(Lost, Refused):
                address = self._dialer.address
                connection = await self._dialer.connect(sentinel, SENTINEL_S, address.sentinel_login)
                async for _, data in messages(connection, CHANNEL):
                    self._heard(data.decode(errors="replace").split())
            await asyncio.sleep(PAUSE_S)

    def _heard(self, words: list[str]) -> None:
        """A message is the primary's name, its old host and port, and the new ones."""
        if len(words) == 5 and words[0] == self._dialer.address.primary and words[4].isdigit():
            place = Place(words[3], int(words[4]))
            log.warning("Sentinel names another primary", primary=words[0], place=str(place))
            self._switched(place)
