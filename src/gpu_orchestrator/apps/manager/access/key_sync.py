"""Keep this process's copy of the keys in step with the store.

It reloads the keys at once when another process publishes a change, and checks their version twice a second
in case that message is lost. So every process refuses a revoked key within a second, and no request waits for
the store to check its key.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.keys import KeyPage
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.access.keys import Key, Keys, stored

POLL_S = 0.5
WRITE_USED_S = 10.0


class KeySync:
    """Calls `changed` after every refresh, to close connections whose key has expired or was revoked."""

    def __init__(self, store: Store, keys: Keys, changed: Callable[[], None]) -> None:
        self._store, self._keys, self._changed = store, keys, changed
        self._version = -1
        self._wake = asyncio.Event()
        self._write_at = 0.0

    def wake(self) -> None:
        self._wake.set()

    async def refresh(self) -> None:
        """Load the keys if their version has changed."""
        page = await self._store.keys.look(self._version)
        if page.rows is not None:
            self._keys.replace(stored(row) for row in page.rows)
            self._version = page.version
        self._changed()

    async def all(self) -> list[Key]:
        """Read all keys from the store, with the time of their last use; the configured ones come first."""
        page = await self._look(-1)
        used = dict(zip(page.configured_used[::2], map(int, page.configured_used[1::2]), strict=True))
        configured = (replace(key, used_ms=used.get(key.id, 0)) for key in self._keys.configured)
        return [*configured, *(stored(row) for row in page.rows or ())]

    async def run(self) -> None:
        """Refresh the keys and write their last use, forever."""
        loop = asyncio.get_running_loop()
        self._write_at = loop.time() + WRITE_USED_S
        while True:
            await wait_until_set(self._wake, POLL_S)
            self._wake.clear()
            with contextlib.suppress(StoreError):  # without the store no key can do anything
                await self.refresh()
                if loop.time() >= self._write_at:
                    await self.write_used()
                    self._write_at = loop.time() + WRITE_USED_S

    async def write_used(self) -> None:
        """Write when each key was last used."""
        if self._keys.used:
            await self._look(self._version)

    async def _look(self, known_version: int) -> KeyPage:
        """Write the last uses and read the keys. After an error the uses are written the next time."""
        used, self._keys.used = self._keys.used, {}
        try:
            return await self._store.keys.look(known_version, list(used.items()))
        except BaseException:
            self._keys.used = {**used, **self._keys.used}
            raise
