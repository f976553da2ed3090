"""The process in which handlers run: one task after another, on the devices its environment shows.

The main thread reads a task, runs its handler, says how it ended. A second thread sleeps until a bell rings:
then there is something to hear that cannot wait until the task that runs has ended.
"""

import faulthandler
import io
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from types import FrameType
from typing import Any

import msgspec

from gpu_orchestrator.adapters.gpus.gpu import OutOfMemory
from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.apps.worker.handlers import find
from gpu_orchestrator.apps.worker.runners import frames, keeper
from gpu_orchestrator.apps.worker.task import BadParameters, Cancelled, SoftLimitReached, Task, Temporary

LARGEST_RESULT = 8 << 20
LONGEST_MESSAGE = 8192


class ResultTooLarge(ValueError):
    """Results are kept in the cluster's store; what is large belongs into a file or an object store."""


class ResultTooDeep(ValueError):
    """Whoever reads it might not go so deep."""


def main(channel: int, bell: int) -> None:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=channel) as connection:
        Runner(connection, bell).serve()


class Runner:
    """Whoever has the lock `_reading` reads. `_rung` counts the bell, `_heard` the frames it rang for."""

    def __init__(self, connection: socket.socket, bell: int) -> None:
        self._connection, self._bell = connection, bell
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._reader = frames.read_by_runner()
        self._reading = threading.Lock()
        self._rung = self._heard = 0
        self._send_lock = threading.Lock()
        self._options = frames.Options()
        self._handlers: dict[str, str] = {}
        self._waiting: deque[frames.Run] = deque()
        self._current: Task | None = None
        self._soft_limited: Task | None = None
        self._cancelled = ("", 0)
        self._is_spent = False
        self._encode = msgspec.json.Encoder().encode

    def serve(self) -> None:
        signal.signal(signal.SIGUSR1, self._raise_soft_limit)
        sys.stdout = sys.stderr = Lines(self._say)
        threading.Thread(target=self._heed, daemon=True).start()
        self._send(frames.Ready(os.getpid()))
        while not self._is_spent:
            self._send(self._perform(self._next()))

    def _next(self) -> frames.Run:
        with self._reading:
            while not self._waiting:
                self._read()
            return self._waiting.popleft()

    def _perform(self, run: frames.Run) -> frames.Frame:
        task = Task(run, self._options, self._say)
        try:
            try:
                self._current = task
                if self._cancelled == (task.id, task.attempt):
                    raise Cancelled
                result = self._encode(find.handler(run.task_type, self._options, self._handlers)(task))
            finally:
                self._current = None
        except Cancelled:
            self._is_spent = _has_children()
            return frames.Stopped(run.task, run.attempt, self._is_spent)
        except BaseException as error:
            return self._erred(run, error)
        if (unfit := _unfit(result)) is not None:
            return self._erred(run, unfit)
        return frames.Ended(run.task, run.attempt, msgspec.Raw(result))

    def _erred(self, run: frames.Run, error: BaseException) -> frames.Erred:
        is_full = isinstance(error, OutOfMemory | MemoryError)
        self._is_spent = is_full or getattr(error, "spends_runner", False) or _has_children()
        if not isinstance(error, BadParameters | Temporary | OutOfMemory | SoftLimitReached):
            for line in traceback.format_exception(error):
                self._say_of(run, line.rstrip("\n"))
        return frames.Erred(
            run.task,
            run.attempt,
            error="OutOfMemory" if is_full else type(error).__name__,
            message=(str(error) or type(error).__name__)[:LONGEST_MESSAGE],
            retryable=is_full or isinstance(error, Temporary),
            spent=self._is_spent,
        )

    def _heed(self) -> None:
        """The second thread. The bell falls silent when the agent is gone."""
        while rings := os.read(self._bell, 1 << 12):
            self._rung += len(rings)
            with self._reading:
                while self._heard < self._rung:
                    self._read()
        os._exit(0)

    def _read(self) -> None:
        """Polls first: who waits in `recv` is also woken, for nothing, when the agent reads what we sent."""
        self._poll.poll()
        data = self._connection.recv(1 << 16)
        if not data:
            os._exit(0)
        for frame in self._reader.feed(data):
            self._hear(frame)

    def _hear(self, frame: frames.ToRunner) -> None:
        if isinstance(frame, frames.Run):
            self._waiting.append(frame)
        else:
            self._heard += 1
            self._obey(frame)

    def _obey(self, frame: frames.Urgent) -> None:
        match frame:
            case frames.Cancel(task, attempt):
                self._cancelled = (task, attempt)
                if (current := self._running(task, attempt)) is not None:
                    current.cancel()
            case frames.SoftLimit(task, attempt):
                if (current := self._running(task, attempt)) is not None:
                    self._soft_limited = current
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            case frames.Withdraw():
                self._withdraw()
            case frames.Setup(options, handlers):
                self._options, self._handlers = options, handlers

    def _running(self, task: str, attempt: int) -> Task | None:
        current = self._current
        return current if current and (current.id, current.attempt) == (task, attempt) else None

    def _raise_soft_limit(self, _number: int, _frame: FrameType | None) -> None:
        """In the main thread. By now another task may be running: that one is let alone."""
        limited, self._soft_limited = self._soft_limited, None
        if limited is not None and limited is self._current:
            raise SoftLimitReached("the task ran past its soft time limit")

    def _withdraw(self) -> None:
        given_back = tuple((run.task, run.attempt) for run in self._waiting)
        self._waiting.clear()
        self._send(frames.Withdrawn(given_back))

    def _say(self, line: str) -> None:
        if (task := self._current) is not None:
            self._send(frames.Line(task.id, task.attempt, line))

    def _say_of(self, run: frames.Run, line: str) -> None:
        self._send(frames.Line(run.task, run.attempt, line))

    def _send(self, frame: frames.Frame) -> None:
        data = frames.encode(frame)
        with self._send_lock:
            self._connection.sendall(data)


def _unfit(result: bytes) -> Exception | None:
    """Why a result cannot be passed on."""
    if len(result) > LARGEST_RESULT:
        return ResultTooLarge(f"a result of {len(result)} bytes; {LARGEST_RESULT} are allowed")
    if is_too_deep(result):
        return ResultTooDeep(f"a result nested deeper than {DEEPEST}; make it flatter")
    return None


def _has_children() -> bool:
    """Whether a task that was cut short left processes behind; they end with this runner."""
    return bool(keeper.descendants(os.getpid()))


class Lines(io.TextIOBase):
    """Where `print` goes: every line is a line of progress of the task that runs."""

    def __init__(self, say: Any) -> None:
        self._say = say
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)
