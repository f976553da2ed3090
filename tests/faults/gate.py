"""A gate that one thread opens and that coroutines of another thread's loop wait at."""

import asyncio
import threading


class Gate:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def open(self) -> None:
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        event = asyncio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()
