"""Standard output and error of a runner: sends what Python code prints, with the task that it belongs to.

Output of C code and of child processes does not pass here: they write to the runner's pipe, which the agent
reads. A reader in the runner itself would wait forever for C code that prints while it holds the GIL.
"""

import _thread
import ctypes
import io
import os
import sys
import threading
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

from gpu_orchestrator.apps.worker.task import OWN_THREAD

FULL = 32 << 10
"""Characters after which text is sent without delay. At MOST_WAITING the writer waits for the agent."""
MOST_WAITING = 8 * FULL
DELAY_S, PAUSE_S, EAGER = 0.1, 0.005, 10
QUIET_THREADS = frozenset({"tqdm"})
"""Packages whose threads stay after a task and never print; they are not worth a warning to the agent."""

Key = tuple[str, int]
NOBODY: Key = ("", 0)


class Output(io.TextIOBase):
    """Collects text and sends it after DELAY_S, so that many short writes share a frame. But the first EAGER
    lines in that time are sent at once by the thread that prints them: if the process crashes next, they are
    known.

    All other text is sent by a thread of its own. A signal can interrupt the main thread anywhere, also in
    the middle of a frame, when the agent is slow to read.

    A destructor can print at any moment in any thread, also in the middle of the code below. So threads wake
    each other by a SimpleQueue, which allows that; an Event would deadlock.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, send: Callable[[Key, str], None], has_room: Callable[[], bool]) -> None:
        """`send` sends text of a task to the agent; `has_room` tells whether that would not block."""
        self._send, self._has_room = send, has_room
        self.buffer = Bytes(self)
        self._key = NOBODY
        self._left_behind: dict[int, threading.Thread | None] = {}
        self._own_threads = _thread._count()
        self._parts: deque[tuple[Key, str]] = deque()
        self._size = 0
        self._sent_at = self._counted_at = 0.0
        self._eager = EAGER
        self._is_mid_line = False
        self._sender: threading.Thread | None = None
        self._is_awake = self._is_full = False
        self._is_forked = False
        self._c_stdout = _c_stdout()
        self._is_sending = False
        self._make_locks()
        os.register_at_fork(after_in_child=self._forked)
        sys.stdout = sys.stderr = self

    # --- called by the runner ------------------------------------------------------------------------------

    def begin(self, key: Key) -> None:
        """Let text belong to this task from now on, except that of threads that run already. An earlier task
        may have put another file in place of this one."""
        sys.stdout = sys.stderr = self
        self._left_behind = _running_threads() if _thread._count() > self._own_threads else {}
        if self.buffer.is_used:
            self.buffer.reset()
        self._key, self._is_mid_line, self._eager = key, False, EAGER

    def end(self) -> None:
        """Let text belong to no task from now on."""
        self._key = NOBODY

    def finish(self) -> None:
        """Send all text, and flush what C code printed. No task runs now, so no signal interrupts this.

        Of C's files only standard output: `fflush(NULL)` would wait for a thread that reads from another."""
        if sys.__stdout__ is not None and not sys.__stdout__.closed:
            sys.__stdout__.flush()
        if self._c_stdout is not None:
            _LIBC.fflush(self._c_stdout)
        if self._parts:
            self._send_all()

    def leaves_threads(self) -> bool:
        """Return whether threads are left that may print. Called when no task runs."""
        if _thread._count() <= self._own_threads:
            return False
        return any(not self._is_ours(each) and not _is_quiet(each) for each in _running_threads().values())

    def write_for(self, key: Key, text: str) -> None:
        """Add text that belongs to this task, whichever thread calls."""
        if self._is_forked:
            _write_raw(text)
        elif text:
            self._is_mid_line = not text.endswith("\n")
            self._parts.append((key, text))
            self._size += len(text)  # other threads may add at the same time: a rough count is enough
            if self._size >= FULL:
                self._send_full()
            elif "\n" in text or "\r" in text:
                self._send_soon()
            else:
                self._wake_sender()

    def write_line(self, key: Key, line: str) -> None:
        """Add a line of its own."""
        self.write_for(key, f"\n{line}\n" if self._is_mid_line else f"{line}\n")

    # --- called through `sys.stdout` and `sys.stderr` ------------------------------------------------------

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        key = NOBODY if self._left_behind and self._was_left_behind() else self._key
        self.write_for(key, text)
        return len(text)

    def flush(self) -> None:
        if self._parts:
            self._send_soon()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the pipe's descriptor, for a child process that shall print here too."""
        return 1

    def reconfigure(self, **_: Any) -> None:
        """Do nothing: the agent reads UTF-8 and gets every line soon."""

    def close(self) -> None:
        """Do nothing: the next task prints here too."""

    # --- sending -------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send now if this is rare and the agent keeps up, else leave it to the sender."""
        now = monotonic()
        if now - self._counted_at >= DELAY_S:
            self._counted_at, self._eager = now, EAGER
        if self._eager > 0 and self._has_room():
            self._eager -= 1
            self._send_all()
        else:
            self._wake_sender()

    def _send_full(self) -> None:
        """Have the sender send. Wait if it cannot keep up, unless this thread is the one that sends: it may
        print too, in a destructor."""
        self._wake_sender()
        if not self._is_full:
            self._is_full = True
            self._bell.put(None)
        while self._size >= MOST_WAITING and self._sender and not self._is_sending_here():
            sleep(PAUSE_S)

    def _is_sending_here(self) -> bool:
        """Return whether this thread has the lock: `_is_sending` is set a moment later."""
        return bool(self._sending._is_owned())  # type: ignore[attr-defined]

    def _wake_sender(self) -> None:
        if self._sender is None:
            self._start_sender()
        if not self._is_awake:
            self._is_awake = True
            self._bell.put(None)

    def _start_sender(self) -> None:
        self._sender = threading.Thread(target=self._send_forever, daemon=True)
        try:
            self._sender.start()
        except RuntimeError:  # the task has used up all threads
            self._sender = None
            self._send_all()
        else:
            self._own_threads += 1

    def _send_forever(self) -> None:
        with suppress(OSError):  # the agent is gone, and the keeper ends this process
            while True:
                self._bell.get()
                while not self._is_full and (left_s := self._sent_at + DELAY_S - monotonic()) > 0:
                    with suppress(Empty):
                        self._bell.get(timeout=left_s)
                self._is_awake = self._is_full = (
                    False  # before sending: what is added from now on rings again
                )
                self._send_all()

    def _send_all(self) -> None:
        with self._sending:
            if self._is_sending:
                return  # a destructor printed while this thread sends
            self._is_sending = True
            try:
                while self._parts:
                    self._send_next()
            finally:
                self._is_sending = False
                self._sent_at = monotonic()

    def _send_next(self) -> None:
        key, text = self._parts.popleft()
        texts, size = [text], len(text)
        while size < FULL and self._parts and self._parts[0][0] == key:
            texts.append(self._parts.popleft()[1])
            size += len(texts[-1])
        self._size = max(self._size - size, 0) if self._parts else 0
        text = "".join(texts)
        for at in range(0, len(text), FULL):
            self._send(key, text[at : at + FULL])

    # --- threads and forks ---------------------------------------------------------------------------------

    def _was_left_behind(self) -> bool:
        """Return whether an earlier task started this thread. Its number may belong to a newer one by now."""
        ident = threading.get_ident()
        if ident not in self._left_behind:
            return False
        thread = self._left_behind[ident]
        return thread is None or threading.current_thread() is thread

    def _is_ours(self, thread: threading.Thread | None) -> bool:
        return thread is not None and (thread is self._sender or thread.name == OWN_THREAD)

    def _forked(self) -> None:
        """Print to the pipe in a child process: it has a copy of the text, and the socket is its parent's."""
        self._is_forked = True
        self._parts.clear()
        self._make_locks()

    def _make_locks(self) -> None:
        self._sending = threading.RLock()
        self._is_sending = False
        self._bell: SimpleQueue[None] = SimpleQueue()


class Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`: bytes are text here, too."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.reset()

    def reset(self) -> None:
        """Forget a character of which not all bytes were written."""
        self.is_used = False
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.is_used = True
        self._output.write(self._decoder.decode(bytes(data)))
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._output.flush()

    def fileno(self) -> int:
        return self._output.fileno()

    def close(self) -> None:
        """Do nothing, as for the text."""


def _running_threads() -> dict[int, threading.Thread | None]:
    """Return the threads in which Python code runs, by number, but the calling one. A thread that was not
    started by `threading` has no object."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    mine = threading.get_ident()
    return {ident: known.get(ident) for ident in sys._current_frames() if ident != mine}


def _is_quiet(thread: threading.Thread | None) -> bool:
    return thread is not None and type(thread).__module__.partition(".")[0] in QUIET_THREADS


def _write_raw(text: str) -> None:
    data = memoryview(text.encode(errors="replace"))
    while data:
        data = data[os.write(1, data) :]


_LIBC = ctypes.CDLL(None)
LINE_BUFFERED = 1


def _c_stdout() -> Any:
    """Return C's standard output, after it was told to write each line at once, as to a terminal."""
    with suppress(ValueError):  # this C library names it otherwise
        stdout = ctypes.c_void_p.in_dll(_LIBC, "stdout")
        _LIBC.setvbuf(stdout, None, LINE_BUFFERED, 0)
        return stdout
    return None
