"""The process in which handlers run: one task after another, on the devices that its environment shows.

The main thread reads a task, runs its handler and reports the outcome. A second thread sleeps until the agent
rings the bell, a pipe: then a frame must be read that cannot wait until the running task has ended.
"""

import faulthandler
import os
import select
import signal
import socket
import threading
from collections import deque
from types import FrameType

import msgspec

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.apps.worker import environment, frames
from gpu_orchestrator.apps.worker.handlers import find, partial
from gpu_orchestrator.apps.worker.runners import device_errors, failure, held_model
from gpu_orchestrator.apps.worker.runners.files import Files
from gpu_orchestrator.apps.worker.runners.output import Key, Output
from gpu_orchestrator.apps.worker.runners.values import Values
from gpu_orchestrator.apps.worker.task import (
    LARGEST_RESULT,
    OWN_THREAD,
    Cancelled,
    LoadFailed,
    SoftLimitReached,
    Task,
    Temporary,
)


class ResultTooLarge(ValueError):
    """The result is too large for the manager's store; large results belong in a file or an object store."""


class ResultTooDeep(ValueError):
    """The result is nested deeper than its readers may support."""


def main(channel: int, bell: int) -> None:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment.add_current_folder()
    with socket.socket(fileno=channel) as connection:
        Runner(connection, bell).serve()


class Runner:
    """Runs tasks until it is spent. Only the thread that holds the lock `_reading` reads from the socket.
    `_rung` counts the rings of the bell, `_handled` the urgent frames that were read."""

    def __init__(self, connection: socket.socket, bell: int) -> None:
        self._connection, self._bell = connection, bell
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._reader = frames.read_by_runner()
        self._reading = threading.Lock()
        self._rung = self._handled = 0
        self._send_lock = threading.RLock()
        self._unsent: deque[bytes] = deque()
        self._is_sending = False
        self._options = frames.Options()
        self._handlers: dict[str, str] = {}
        self._waiting: deque[frames.Run | frames.Load] = deque()
        self._model: held_model.HeldModel | None = None
        self._current: Task | None = None
        self._soft_limited: Task | None = None
        self._cancelled = ("", 0)
        self._is_spent = False
        self._own_children: frozenset[int] = frozenset()
        """Processes that the model started when it was loaded."""
        self._encode = msgspec.json.Encoder().encode

    def serve(self) -> None:
        signal.signal(signal.SIGUSR1, self._raise_soft_limit)
        threading.Thread(target=self._read_urgent, daemon=True, name=OWN_THREAD).start()
        self._output = Output(self._send_text, self._has_room)
        self._values = Values(self._send)
        self._files = Files(self._send)
        self._send(frames.Ready(os.getpid()))
        while not self._is_spent:
            match self._next():
                case frames.Load() as load:
                    self._load(load)
                case frames.Run() as run:
                    self._report(self._perform(run))

    def _load(self, load: frames.Load) -> None:
        """Load the model, or fail the attempt that it is loaded for; then nothing of it may stay."""
        self._output.begin((load.task, load.attempt))
        try:
            self._model = held_model.load(
                load, self._options.models[load.task_type], self._output, self._send
            )
        except BaseException as error:
            self._output.end()
            self._report(self._not_loaded(load, error))
            self._is_spent = True
            return
        self._output.end()
        self._output.finish()
        self._own_children = frozenset(keeper.descendants(os.getpid()))
        self._send(frames.Loaded(self._model.load_s, self._model.ends_within_s))

    def _report(self, outcome: frames.Outcome) -> None:
        """Send all that the task printed, then its outcome."""
        self._output.finish()
        # With more runs queued the agent does not ask, and many short tasks save a system call each.
        if not self._waiting and (self._output.leaves_threads() or _leaves_children()):
            outcome = msgspec.structs.replace(outcome, left_behind=True)
        self._send(outcome)

    def _next(self) -> frames.Run | frames.Load:
        with self._reading:
            while not self._waiting:
                self._read()
            return self._waiting.popleft()

    def _perform(self, run: frames.Run) -> frames.Outcome:
        task = Task(run, self._options, self._output, self._values)
        self._output.begin(task.key)
        self._values.begin(task.key)
        try:
            try:
                self._current = task
                if self._cancelled == (task.id, task.attempt):
                    raise Cancelled
                if run.gang is None:
                    result = self._run(task, only_load=run.only_load)
                else:
                    with environment.of_gang(run.gang, run.attempt):
                        result = self._run(task)
            finally:
                self._current = None
                self._files.end()
                self._output.end()
        except Cancelled:
            self._is_spent = self._has_children()
            return frames.Stopped(run.task, run.attempt, self._is_spent)
        except BaseException as error:
            return self._erred(run, error)
        if (result_error := _result_error(result)) is not None:
            return self._erred(run, result_error)
        return frames.Ended(run.task, run.attempt, msgspec.Raw(result))

    def _run(self, task: Task, *, only_load: bool = False) -> bytes:
        """Run the handler and return its result, once the manager has taken what the task sent before it."""
        if only_load:
            return self._encode(None)
        try:
            self._files.begin(task)
            result = self._encode(partial.result_of(task, self._handle_task(task)))
        except Exception:
            self._values.drain(lambda: task.is_cancelled)
            raise
        self._values.drain(lambda: task.is_cancelled)
        task.check()
        return result

    def _handle_task(self, task: Task) -> object:
        if self._model is not None:
            return self._model.handler.run(task)
        return find.handler(task.type, self._options, self._handlers)(task)

    def _not_loaded(self, load: frames.Load, error: BaseException) -> frames.Erred:
        found = device_errors.classify(error)
        self._output.write_line((load.task, load.attempt), failure.text_of(error).rstrip("\n"))
        said = failure.message_of(error, found.advice)
        what = f"model {load.model!r} could not be loaded"
        is_ours = isinstance(error, LoadFailed)
        return frames.Erred(
            load.task,
            load.attempt,
            error="OutOfMemory" if found.is_out_of_memory else "ModelLoadFailed",
            message=said if is_ours else f"{what}: {type(error).__name__}: {said}"[: failure.LONGEST_MESSAGE],
            retryable=found.is_retryable or isinstance(error, Temporary),
            spent=True,
        )

    def _erred(self, run: frames.Run, error: BaseException) -> frames.Erred:
        found = device_errors.classify(error)
        spends = found.breaks_context or getattr(error, "spends_runner", False)
        self._is_spent = spends or self._has_children()
        self._output.write_line((run.task, run.attempt), failure.text_of(error).rstrip("\n"))
        return frames.Erred(
            run.task,
            run.attempt,
            error="OutOfMemory" if found.is_out_of_memory else type(error).__name__,
            message=failure.message_of(error, found.advice),
            retryable=found.is_retryable or isinstance(error, Temporary),
            spent=self._is_spent,
        )

    def _has_children(self) -> bool:
        """Return whether an interrupted task left processes behind; they end with this runner."""
        own = self._own_children | held_model.processes(self._model)
        return not own.issuperset(keeper.descendants(os.getpid()))

    def _read_urgent(self) -> None:
        """Read urgent frames, in the second thread. End the process when the agent closes the bell."""
        while rings := os.read(self._bell, 1 << 12):
            self._rung += len(rings)
            with self._reading:
                while self._handled < self._rung:
                    self._read()
        os._exit(0)

    def _read(self) -> None:
        """Read and handle frames. Poll first: a thread that blocks in `recv` also wakes up, for nothing, each
        time the agent reads what this process sent."""
        self._poll.poll()
        data = self._connection.recv(1 << 16)
        if not data:
            os._exit(0)
        for frame in self._reader.feed(data):
            self._receive(frame)

    def _receive(self, frame: frames.ToRunner) -> None:
        if isinstance(frame, frames.Run | frames.Load):
            self._waiting.append(frame)
        else:
            self._handled += 1
            self._handle(frame)

    def _handle(self, frame: frames.Urgent) -> None:
        match frame:
            case frames.Cancel(task, attempt):
                self._cancelled = (task, attempt)
                if (current := self._running(task, attempt)) is not None:
                    current.cancel()
                    self._values.wake()
                    self._files.wake()
            case frames.SoftLimit(task, attempt):
                if (current := self._running(task, attempt)) is not None:
                    self._soft_limited = current
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            case frames.Taken(task, attempt, values):
                self._values.taken((task, attempt), values)
            case frames.Got():
                self._files.got(frame)
            case frames.Close(drains):
                threading.Thread(target=self._close, args=(drains,), daemon=True, name=OWN_THREAD).start()
            case frames.Withdraw():
                self._withdraw()
            case frames.Setup(options, handlers):
                self._options, self._handlers = options, handlers

    def _close(self, drains: bool) -> None:
        """End the model's server, and this process; in a thread of its own, as tasks may still run."""
        try:
            if self._model is not None:
                self._model.close(drains=drains)
        finally:
            os._exit(0)

    def _running(self, task: str, attempt: int) -> Task | None:
        current = self._current
        return current if current and (current.id, current.attempt) == (task, attempt) else None

    def _raise_soft_limit(self, _number: int, _frame: FrameType | None) -> None:
        """Raise in the main thread, but only if the limited task still runs; by now another one may."""
        limited, self._soft_limited = self._soft_limited, None
        if limited is not None and limited is self._current:
            raise SoftLimitReached("the task ran past its soft time limit; submit it with a longer timeout")

    def _withdraw(self) -> None:
        withdrawn = tuple((run.task, run.attempt) for run in self._waiting if isinstance(run, frames.Run))
        self._waiting = deque(each for each in self._waiting if isinstance(each, frames.Load))
        self._send(frames.Withdrawn(withdrawn))

    def _send_text(self, key: Key, text: str) -> None:
        try:
            self._send(frames.Printed(*key, text))
        except UnicodeEncodeError:  # halves of a surrogate pair, such as bytes of a file name
            self._send(frames.Printed(*key, text.encode(errors="replace").decode()))

    def _has_room(self) -> bool:
        """Return whether the agent keeps up: at least three quarters of the socket's buffer are free."""
        poll = select.poll()  # a new one, because several threads may ask at once
        poll.register(self._connection, select.POLLOUT)
        return bool(poll.poll(0))

    def _send(self, frame: frames.Frame) -> None:
        """Send a frame. If a destructor prints while this thread sends, its frame comes after that one, not
        in the middle of it."""
        with self._send_lock:
            self._unsent.append(frames.encode(frame))
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._unsent:
                    self._connection.sendall(self._unsent.popleft())
            finally:
                self._is_sending = False


def _result_error(result: bytes) -> Exception | None:
    """Return why a result cannot be sent, or None."""
    if len(result) > LARGEST_RESULT:
        return ResultTooLarge(f"the result has {len(result)} bytes; at most {LARGEST_RESULT} are allowed")
    if is_too_deep(result):
        return ResultTooDeep(f"the result is nested deeper than {DEEPEST}; make it flatter")
    return None


def _leaves_children() -> bool:
    """Return whether this process has children, for the price of one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
