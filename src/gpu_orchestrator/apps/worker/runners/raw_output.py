"""The pipe that is standard output and error of one runner and of all processes below it, at the agent's end.

Python code in the runner does not print here (see `output`): C code does, and so do child processes.
"""

import asyncio
import os
import select
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress

AT_ONCE = 64 << 10
MOST_READS = 16


class RawOutput:
    """Passes text on as it comes. `drain` passes on what was written until now, before the agent does
    anything else: so text does not end up with a task that began later."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._near, self.far = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._near, False)
        self._poll = select.poll()
        self._poll.register(self._near, select.POLLIN)
        self._is_reading, self._is_closed = True, False
        self.forget_partial()

    def begin(self) -> None:
        """Read from now on. The runner has its own copy of the other end."""
        asyncio.get_running_loop().add_reader(self._near, self._read)

    def close_far(self) -> None:
        os.close(self.far)

    def drain(self) -> None:
        """Read all that was written. Left-behind processes may write on: stop after a full pipe or more."""
        reads = 0
        while self._is_reading and reads < MOST_READS and self._poll.poll(0) and self._read():
            reads += 1

    def forget_partial(self) -> None:
        """Forget a character of which not all bytes were written."""
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def close(self) -> None:
        """Read the rest and close the pipe."""
        if not self._is_closed:
            self.drain()
            self._stop()
            self._is_closed = True
            os.close(self._near)

    def _read(self) -> bool:
        """Return False when there is nothing more to read."""
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._near, AT_ONCE)
            if not data:
                self._stop()
        if data:
            self._on_text(self._decoder.decode(data))
        return bool(data)

    def _stop(self) -> None:
        if self._is_reading:
            self._is_reading = False
            asyncio.get_running_loop().remove_reader(self._near)
