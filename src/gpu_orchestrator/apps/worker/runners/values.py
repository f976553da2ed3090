"""What a task sends before its end, in the runner: gathers values, has a thread of its own send them in
frames, and makes the task wait while the manager is behind.

The task's thread never writes to the socket: a signal can interrupt it in the middle of a frame.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic

import msgspec

from gpu_orchestrator.api.partial import LARGEST_MESSAGE, MOST_AHEAD, MOST_VALUES
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.runners.output import NOBODY, Key
from gpu_orchestrator.apps.worker.task import OWN_THREAD

PACE_S = 0.05
"""The first value of a task is sent at once, those that follow closely share a frame, and the last ones go as
soon as the task has ended."""
FULL = 32 << 10
"""Bytes that are worth a frame without delay."""


class Values:
    """The values of the running task: first `_waiting`, then sent and not taken (`_untaken`)."""

    def __init__(self, send: Callable[[frames.Sent], None]) -> None:
        self._send = send
        self._key = NOBODY
        self._thread: threading.Thread | None = None
        self._is_forked = False
        self._sent_at = -inf
        self._waiting: deque[bytes] = deque()
        self._untaken: deque[tuple[int, int]] = deque()
        self._size, self._ahead = 0, 0
        self._at, self._total, self._taken = 0, 0, 0
        self._is_idle = True
        self._is_draining = False
        self._make_locks()
        os.register_at_fork(after_in_child=self._forked)

    # --- called by the runner ------------------------------------------------------------------------------

    def begin(self, key: Key) -> None:
        """Take values of this task from now on."""
        if self._total:
            with self._lock:
                self._reset()
                self._sent_at, self._is_draining = -inf, False
        self._key = key

    def taken(self, key: Key, count: int) -> None:
        """Note that the manager has taken the first `count` values of a task."""
        with self._lock:
            if key == self._key:
                self._taken = max(self._taken, count)
                while self._untaken and self._untaken[0][0] <= count:
                    self._ahead -= self._untaken.popleft()[1]
                self._room.notify_all()

    def wake(self) -> None:
        """Let a task that waits look whether it was cancelled."""
        with self._lock:
            self._room.notify_all()

    # --- called by the task --------------------------------------------------------------------------------

    def put(self, key: Key, value: bytes) -> bool:
        """Send a value, in the order of calls; return False if there is no room now."""
        if self._is_forked:
            raise RuntimeError("values are sent by the process that runs the task, not by a child of it")
        with self._lock:
            if key != self._key:
                raise RuntimeError("the task has ended and can send no more values")
            if self._ahead >= MOST_AHEAD:
                return False
            self._waiting.append(value)
            self._total += 1
            self._size += len(value)
            self._ahead += len(value)
            if self._thread is None:
                self._start()
            if self._is_idle or self._size >= FULL:
                self._is_idle = False
                self._work.notify()
            return True

    def wait_for_room(self, is_cancelled: Callable[[], bool]) -> None:
        """Wait until there may be room, or the task is cancelled."""
        with self._lock:
            while self._ahead >= MOST_AHEAD and not is_cancelled():
                self._room.wait()

    def drain(self, is_cancelled: Callable[[], bool]) -> None:
        """Wait until the manager has taken all values, or the task is cancelled."""
        if self._total:
            with self._lock:
                self._is_draining = True
                self._work.notify()
                while self._taken < self._total and not is_cancelled():
                    self._room.wait()

    # --- sending -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._send_forever, daemon=True, name=OWN_THREAD)
        self._thread.start()

    def _send_forever(self) -> None:
        with suppress(OSError):  # the agent is gone, and the keeper ends this process
            while True:
                with self._lock:
                    self._wait_for_work()
                    frame = self._next()
                if frame is not None:
                    self._send(frame)

    def _wait_for_work(self) -> None:
        while not self._waiting:
            self._is_idle = True
            self._work.wait()
        while self._is_paced() and (left_s := self._sent_at + PACE_S - monotonic()) > 0:
            self._work.wait(left_s)

    def _is_paced(self) -> bool:
        return self._size < FULL and not self._is_draining

    def _next(self) -> frames.Sent | None:
        """Return a frame with the next values; None if the task has ended meanwhile."""
        values: list[msgspec.Raw] = []
        size = 0
        while self._waiting and len(values) < MOST_VALUES:
            if values and size + len(self._waiting[0]) > LARGEST_MESSAGE:
                break
            value = self._waiting.popleft()
            values.append(msgspec.Raw(value))
            size += len(value)
        if not values:
            return None
        self._sent_at = monotonic()
        at, self._at = self._at, self._at + len(values)
        self._size -= size
        self._untaken.append((self._at, size))
        return frames.Sent(*self._key, at, tuple(values))

    def _reset(self) -> None:
        self._waiting.clear()
        self._untaken.clear()
        self._size = self._ahead = self._at = self._total = self._taken = 0

    def _forked(self) -> None:
        self._is_forked = True
        self._make_locks()

    def _make_locks(self) -> None:
        """A destructor may send, too: so the lock is one that its holder can take again."""
        self._lock = threading.RLock()
        self._room, self._work = threading.Condition(self._lock), threading.Condition(self._lock)
        self._is_idle = True
