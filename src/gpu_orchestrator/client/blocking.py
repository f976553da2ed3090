"""The blocking client. Threads may share one: each request has a connection of its own, and connections are
used again."""

import http.client
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from gpu_orchestrator.api.files import File
from gpu_orchestrator.client import calls, dial, streaming, transfer, where
from gpu_orchestrator.client.conversation import Conversation
from gpu_orchestrator.client.errors import BadPlace, ClientError
from gpu_orchestrator.client.functions import Callback, P, StreamFunction, TaskFunction
from gpu_orchestrator.client.scheduling import Schedules
from gpu_orchestrator.client.steps import Answer, Ask, Emit, Lost, Open, Pause, Read, Reply, Step, Steps
from gpu_orchestrator.client.tasks import Call, Event, Explanation, Options, Pending, TaskInfo, members_of
from gpu_orchestrator.client.where import Given, Place

R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
Y = TypeVar("Y")
Y_co = TypeVar("Y_co", covariant=True)
PIECE = 65_536


class Line(Protocol):
    """Performs the steps of one conversation."""

    def perform(self, step: Step) -> Answer: ...

    def close(self) -> None: ...


class Wire(Protocol):
    """Where conversations take place: on connections to a server, or in this process for tests."""

    def line(self) -> Line: ...

    def close(self) -> None: ...


class Handle(Pending[R_co], Generic[R_co]):
    """A submitted task. `id` names it for every other client and for the command line."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client", call: Call[R_co], task_id: str) -> None:
        super().__init__(task_id, call.decode, call.decode_value)
        self._client = client

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the task and return its result; raise `TaskFailed`, or `TimedOut` after `timeout`
        seconds."""
        return self._client._run(self._client._with.result(self, timeout))

    def wait(self, timeout: float | None = None) -> TaskInfo:
        """Wait until the task has ended, however it ended, and return it; raise `TimedOut`."""
        self._client.wait([self], timeout)
        return self.info()

    def info(self) -> TaskInfo:
        """Return the task as it is now."""
        if self.known is None or not self.known.has_ended:
            self.known = self._client._run(self._client._with.info(self.id))
        return self.known

    def members(self) -> "list[Handle[R_co]]":
        """Return the members of the task's gang, by rank; of a task that is in none, the task alone."""
        kind, found = type(self), self.info()
        return [kind(self._client, self._call(), each) for each in members_of(found)]

    def cancel(self) -> bool:
        """Cancel the task, and with it its gang; return False if it has ended otherwise."""
        return self._client.cancel(self)[0]

    def explain(self) -> Explanation:
        """Return why the task waits."""
        return self._client._run(self._client._with.explain(self.id))

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines that the task has printed; with `follow` go on until it has ended."""
        return self._client._emitted(self._client._with.logs(self.id, follow=follow))

    def stream(self, *, after: str = "", skip_missed: bool = False) -> Iterator[Any]:
        """Yield what the task sends while it runs, each value once and in order, until it has ended; raise
        `TaskFailed` if it ends without a result. The task waits for a reader that is slower.

        Raise `StreamRestarted` when another attempt begins, and `ValuesMissed` for values that are no longer
        kept, because they came before this began; with `skip_missed` go on behind them. `after` is a place
        such as that of `ValuesMissed`."""
        talk = self._client._with
        return self._client._emitted(streaming.values(talk, self, after, skip_missed=skip_missed))


class StreamHandle(Handle[R_co], Generic[Y_co, R_co]):
    """The handle of a generator function, which says what it yields."""

    __slots__ = ()

    if TYPE_CHECKING:

        def stream(self, *, after: str = "", skip_missed: bool = False) -> Iterator[Y_co]: ...


class Client:
    """A client of a cluster manager. Without arguments it finds address and key as the command line does:
    GPU_ORCHESTRATOR_URL and API_KEY, then what `login` stored, then what `up` left on this machine.

    `patience_s`: how long a request is tried again while the server is away or busy."""

    def __init__(
        self,
        url: str = "",
        *,
        key: str = "",
        key_file: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] = "",
        patience_s: float = 60.0,
        wire: Wire | None = None,
    ) -> None:
        given = Given(url, key, Path(key_file) if key_file else None, os.fspath(ca))
        self.place = Place("in this process") if wire else where.find(given)
        self._wire = wire or Connections(self.place)
        self._with = conversation(self.place, patience_s)
        self.schedules = Schedules(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Tasks go on."""
        self._wire.close()

    @overload
    def submit(
        self, task: StreamFunction[P, Y, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> StreamHandle[Y, R]: ...
    @overload
    def submit(self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def submit(self, task: Call[R], /) -> Handle[R]: ...
    @overload
    def submit(self, task: str, parameters: Any = None, /, **options: Unpack[Options]) -> Handle[Any]: ...
    def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Submit a task and return at once: a task function with its arguments, a `Call`, or a task type with
        its parameters and options. Raise `Refused` if no worker can ever take it."""
        call = calls.of(task, args, kwargs)
        (task_id,) = self._run(self._with.submit([call]))
        kind = StreamHandle if isinstance(task, StreamFunction) else Handle
        return kind(self, call, task_id)

    def batch(self, tasks: Iterable[Call[R]], /) -> list[Handle[R]]:
        """Submit many tasks with few requests. Up to a thousand are taken as a whole or not at all."""
        asked = [calls.of(each, (), {}) for each in tasks]
        ids = self._run(self._with.submit(asked))
        return [Handle(self, call, task_id) for call, task_id in zip(asked, ids, strict=True)]

    @overload
    def map(self, task: TaskFunction[..., R], inputs: Iterable[Any], /) -> list[R]: ...
    @overload
    def map(self, task: str, inputs: Iterable[Any], /, **options: Unpack[Options]) -> list[Any]: ...
    def map(self, task: Any, inputs: Iterable[Any], /, **options: Any) -> list[Any]:
        """Run a task for each input and return the results in order. The input is the only argument of a task
        function, or the parameters of a task type."""
        return self.gather(self.batch([calls.of(task, (each,), options) for each in inputs]))

    def group(self, tasks: Iterable[Call[R]], /, then: Callback[R, S]) -> Handle[S]:
        """Run these tasks, and when all have ended `then` with the list of their results, which need not pass
        through this program. Return the handle of `then`. If one fails, `then` is cancelled; with
        `then.options(on_failure="run")` it runs, and gets None for that one."""
        parts = self.batch(calls.group(tasks, then))
        return self.submit(calls.of(then, ([each.output for each in parts],), {}))

    @overload
    def handle(self, task_id: str, task: StreamFunction[..., Y, R]) -> StreamHandle[Y, R]: ...
    @overload
    def handle(self, task_id: str, task: TaskFunction[..., R] | None = None) -> Handle[R]: ...
    def handle(self, task_id: str, task: TaskFunction[..., Any] | None = None) -> Handle[Any]:
        """Return the handle of a task that was submitted elsewhere; `task` is whose result it has."""
        kind = StreamHandle if isinstance(task, StreamFunction) else Handle
        return kind(self, calls.known(task), task_id)

    def wait(self, handles: Iterable[Handle[Any]], timeout: float | None = None) -> None:
        """Wait until all these tasks have ended, however they ended; raise `TimedOut`."""
        self._run(self._with.wait(calls.handles(handles), timeout))

    @overload
    def gather(
        self,
        handles: Iterable[Handle[R]],
        timeout: float | None = None,
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def gather(
        self, handles: Iterable[Handle[R]], timeout: float | None = None, *, return_exceptions: bool
    ) -> list[R | ClientError]: ...
    def gather(
        self, handles: Iterable[Handle[R]], timeout: float | None = None, *, return_exceptions: bool = False
    ) -> Any:
        """Wait for these tasks and return their results in order. The first that fails is raised at once, and
        the others go on; with `return_exceptions` the errors are among the results."""
        asked = calls.handles(handles)
        return self._run(self._with.gather(asked, timeout, return_exceptions=return_exceptions))

    def as_completed(self, handles: Iterable[Handle[R]], timeout: float | None = None) -> Iterator[Handle[R]]:
        """Yield the handles of these tasks as they end; `result()` then returns at once. However many they
        are, they are waited for with one request for ten thousand."""
        return self._emitted(self._with.wait(calls.handles(handles), timeout))

    def cancel(self, *handles: Handle[Any]) -> list[bool]:
        """Cancel tasks; return for each False if it had ended otherwise. An unknown one raises `NotFound`."""
        done = self._run(self._with.cancel([each.id for each in calls.handles(handles)]))
        return [done[each.id] for each in handles]

    def upload(self, path: str | os.PathLike[str], *, name: str = "") -> File:
        """Send a file to the server, piece by piece, and return what stands for it among the arguments of
        tasks. It is kept for a day after it was last used, if the server is not told otherwise."""
        return self._run(transfer.send(self._with, Path(path), name))

    def download(self, file: File | str, to: str | os.PathLike[str] = ".") -> Path:
        """Receive a file, such as one that a task has left, and return its path. If `to` is a folder, it gets
        its own name there."""
        return self._run(transfer.receive(self._with, transfer.named(file), Path(to)))

    def delete(self, file: File | str) -> None:
        """Delete a file on the server."""
        self._run(transfer.remove(self._with, transfer.named(file)))

    def events(self, after: str = "") -> Iterator[Event]:
        """Yield what happens in the cluster from now on, or after the event with this id; leave the loop to
        end it. Lost connections are made again, and no event is missed."""
        return self._emitted(self._with.events(after))

    def _run(self, steps: Steps[R]) -> R:
        line = self._wire.line()
        try:
            step = next(steps)
            while True:
                step = steps.send(line.perform(step))
        except StopIteration as ended:
            result: R = ended.value
            return result
        finally:
            line.close()

    def _emitted(self, steps: Steps[None]) -> Iterator[Any]:
        line = self._wire.line()
        try:
            step = next(steps)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                step = steps.send(line.perform(step))
        except StopIteration:
            return
        finally:
            line.close()


class Connections:
    """Connections to a server, open and not in use just now."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.path = urlsplit(place.url).path
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._process = os.getpid()

    @property
    def url(self) -> str:
        return self._place.url

    def line(self) -> Line:
        return _Line(self, {"Authorization": f"Bearer {self._place.key}"} if self._place.key else {})

    def take(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was in use before: the server may have closed it since."""
        if self._process != os.getpid():  # forked; two processes would read each other's answers
            self.close()
            self._process = os.getpid()
        try:
            return self._idle.pop(), True
        except IndexError:
            return dial.connection(self._place), False

    def keep(self, connection: http.client.HTTPConnection) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Line:
    def __init__(self, wire: Connections, headers: dict[str, str]) -> None:
        self._wire, self._headers = wire, headers
        self._connection: http.client.HTTPConnection | None = None
        self._socket: Any = None
        self._answer: http.client.HTTPResponse | None = None

    def perform(self, step: Step) -> Answer:
        match step:
            case Ask():
                return self._ask(step)
            case Open(request):
                return self._open(request)
            case Read(within_s):
                return self._read(within_s)
            case Pause(seconds):
                time.sleep(seconds)
        return None

    def close(self) -> None:
        """Leave the stream; a connection with an answer that was not read is of no more use."""
        connection, self._connection, self._answer = self._connection, None, None
        if connection is not None:
            connection.close()

    def _ask(self, request: Ask) -> Reply | Lost:
        reply = self._open(request)
        if isinstance(reply, Lost) or self._answer is None:
            return reply
        body = self._rest(request.answer_s)
        return body if isinstance(body, Lost) else Reply(reply.status, body, reply.retry_after)

    def _open(self, request: Ask) -> Reply | Lost:
        """Send a request; with status 200 the answer is left to be read."""
        self.close()
        was_used = True
        while was_used:
            try:
                self._connection, was_used = self._wire.take()
                self._answer = self._sent(self._connection, request)
            except BadPlace as error:
                return Lost(str(error), lasting=True)
            except (OSError, http.client.HTTPException, UnicodeError) as error:
                self.close()
                lost = Lost(dial.silence(error, self._wire.url, request.answer_s))
            else:
                return self._replied(request)
        return lost

    def _sent(self, connection: http.client.HTTPConnection, request: Ask) -> http.client.HTTPResponse:
        if connection.sock is None:
            connection.connect()
        self._socket = connection.sock
        self._socket.settimeout(request.answer_s)
        headers = {**self._headers, **request.headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        target = self._wire.path + request.path
        if not request.file:
            connection.request(request.method, target, body=request.body, headers=headers)
            return connection.getresponse()
        with Path(request.file).open("rb") as file:
            headers["Content-Length"] = str(os.fstat(file.fileno()).st_size)
            connection.request(request.method, target, body=file, headers=headers)
            return connection.getresponse()

    def _replied(self, request: Ask) -> Reply | Lost:
        assert self._answer is not None  # noqa: S101 - it was just received
        status, retry_after = self._answer.status, self._answer.headers.get("Retry-After", "")
        if status < 400:
            return Reply(status, b"", retry_after)
        body = self._rest(request.answer_s)
        return body if isinstance(body, Lost) else Reply(status, body, retry_after)

    def _rest(self, within_s: float) -> bytes | Lost:
        """Read the whole answer."""
        pieces = []
        while piece := self._read(within_s):
            if isinstance(piece, Lost):
                return piece
            pieces.append(piece)
        return b"".join(pieces)

    def _read(self, within_s: float) -> bytes | Lost:
        """Read the next piece; at the end the connection can be used again."""
        answer, connection = self._answer, self._connection
        if answer is None or connection is None:
            return b""
        try:
            self._socket.settimeout(within_s)
            piece = answer.read1(PIECE)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            return Lost(dial.silence(error, self._wire.url, within_s))
        if not piece:
            # Some versions of Python leave it open: the next request would be sent, and then be refused here.
            answer.close()
            self._answer = self._connection = None
            if answer.will_close:
                connection.close()
            else:
                self._wire.keep(connection)
        return piece


def conversation(place: Place, patience_s: float) -> Conversation:
    advice = (
        "start one with `gpu-orchestrator up`, or name another: Client(url), GPU_ORCHESTRATOR_URL or "
        "`gpu-orchestrator login URL`"
    )
    chance = Random()  # noqa: S311 - spreads retries
    return Conversation(
        place.url,
        advice,
        time.monotonic,
        chance.random,
        lambda: os.urandom(16).hex(),
        bool(place.key),
        place.key_found,
        patience_s,
    )
