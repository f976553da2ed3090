"""Keeps this process's copy of the keys fresh: at once when another process says that they changed, and by
looking at their version twice a second, should word of it be lost. So a revoked key ends within a second
everywhere, and no request waits for the store to know who asks.
"""

import asyncio
import contextlib
from collections.abc import Callable

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.keys import KeyPage
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.access.keys import Key, Keys, stored

LOOK_S = 0.5
WRITE_USED_S = 10.0


class KeySync:
    """`changed` is called after every look, for connections whose key may be over."""

    def __init__(self, store: Store, keys: Keys, changed: Callable[[], None]) -> None:
        self._store, self._keys, self._changed = store, keys, changed
        self._version = -1
        self._wake = asyncio.Event()
        self._write_at = 0.0

    def wake(self) -> None:
        self._wake.set()

    async def refresh(self) -> None:
        page = await self._store.keys.look(self._version)
        if page.rows is not None:
            self._keys.replace(stored(row) for row in page.rows)
            self._version = page.version
        self._changed()

    async def all(self) -> list[Key]:
        """As the store has them now, with when they were used last; the configured ones first."""
        page = await self._look(-1)
        return [*self._keys.configured, *(stored(row) for row in page.rows or ())]

    async def run(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        self._write_at = loop.time() + WRITE_USED_S
        while True:
            await wait_until_set(self._wake, LOOK_S)
            self._wake.clear()
            with contextlib.suppress(StoreError):  # while it is away nothing can be done with a key anyway
                await self.refresh()
                if loop.time() >= self._write_at:
                    await self.write_used()
                    self._write_at = loop.time() + WRITE_USED_S

    async def write_used(self) -> None:
        if self._keys.used:
            await self._look(self._version)

    async def _look(self, known_version: int) -> KeyPage:
        """What may not have been written down is written down the next time."""
        used, self._keys.used = self._keys.used, {}
        try:
            return await self._store.keys.look(known_version, list(used.items()))
        except BaseException:
            self._keys.used = {**used, **self._keys.used}
            raise
