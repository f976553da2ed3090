"""The asynchronous client: the same surface as the blocking one, and the same conversation."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

import aiohttp

from gpu_orchestrator.api.files import File
from gpu_orchestrator.client import calls, dial, streaming, transfer, where
from gpu_orchestrator.client.blocking import conversation
from gpu_orchestrator.client.errors import ClientError
from gpu_orchestrator.client.functions import Callback, P, StreamFunction, TaskFunction
from gpu_orchestrator.client.scheduling import AsyncSchedules
from gpu_orchestrator.client.steps import Answer, Ask, Emit, Lost, Open, Pause, Read, Reply, Step, Steps
from gpu_orchestrator.client.tasks import Call, Event, Explanation, Options, Pending, TaskInfo, members_of
from gpu_orchestrator.client.where import Given, Place

R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)
Y = TypeVar("Y")
Y_co = TypeVar("Y_co", covariant=True)


class AsyncHandle(Pending[R_co], Generic[R_co]):
    """A submitted task. `id` names it for every other client and for the command line."""

    __slots__ = ("_client",)

    def __init__(self, client: "AsyncClient", call: Call[R_co], task_id: str) -> None:
        super().__init__(task_id, call.decode, call.decode_value)
        self._client = client

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the task and return its result; raise `TaskFailed`, or `TimedOut` after `timeout`
        seconds."""
        return await self._client._run(self._client._with.result(self, timeout))

    async def wait(self, timeout: float | None = None) -> TaskInfo:
        """Wait until the task has ended, however it ended, and return it; raise `TimedOut`."""
        await self._client.wait([self], timeout)
        return await self.info()

    async def info(self) -> TaskInfo:
        """Return the task as it is now."""
        if self.known is None or not self.known.has_ended:
            self.known = await self._client._run(self._client._with.info(self.id))
        return self.known

    async def members(self) -> "list[AsyncHandle[R_co]]":
        """Return the members of the task's gang, by rank; of a task that is in none, the task alone."""
        kind, found = type(self), await self.info()
        return [kind(self._client, self._call(), each) for each in members_of(found)]

    async def cancel(self) -> bool:
        """Cancel the task, and with it its gang; return False if it has ended otherwise."""
        return (await self._client.cancel(self))[0]

    async def explain(self) -> Explanation:
        """Return why the task waits."""
        return await self._client._run(self._client._with.explain(self.id))

    def logs(self, *, follow: bool = False) -> AsyncIterator[str]:
        """Yield the lines that the task has printed; with `follow` go on until it has ended."""
        return self._client._emitted(self._client._with.logs(self.id, follow=follow))

    def stream(self, *, after: str = "", skip_missed: bool = False) -> AsyncIterator[Any]:
        """Yield what the task sends while it runs, each value once and in order: see `Handle.stream`."""
        talk = self._client._with
        return self._client._emitted(streaming.values(talk, self, after, skip_missed=skip_missed))


class AsyncStreamHandle(AsyncHandle[R_co], Generic[Y_co, R_co]):
    """The handle of a generator function, which says what it yields."""

    __slots__ = ()

    if TYPE_CHECKING:

        def stream(self, *, after: str = "", skip_missed: bool = False) -> AsyncIterator[Y_co]: ...


class AsyncClient:
    """A client of a cluster manager for asyncio: `async with AsyncClient() as client`. Finds address and key
    as `Client` does; every method is that of `Client`, to be awaited."""

    def __init__(
        self,
        url: str = "",
        *,
        key: str = "",
        key_file: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] = "",
        patience_s: float = 60.0,
    ) -> None:
        given = Given(url, key, Path(key_file) if key_file else None, os.fspath(ca))
        self.place = where.find(given)
        self._with = conversation(self.place, patience_s)
        self.schedules = AsyncSchedules(self)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Tasks go on."""
        if self._session is not None:
            await self._session.close()

    @overload
    async def submit(
        self, task: StreamFunction[P, Y, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncStreamHandle[Y, R]: ...
    @overload
    async def submit(
        self, task: TaskFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...
    @overload
    async def submit(self, task: Call[R], /) -> AsyncHandle[R]: ...
    @overload
    async def submit(
        self, task: str, parameters: Any = None, /, **options: Unpack[Options]
    ) -> AsyncHandle[Any]: ...
    async def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> AsyncHandle[Any]:
        """Submit a task and return at once: see `Client.submit`."""
        call = calls.of(task, args, kwargs)
        (task_id,) = await self._run(self._with.submit([call]))
        kind = AsyncStreamHandle if isinstance(task, StreamFunction) else AsyncHandle
        return kind(self, call, task_id)

    async def batch(self, tasks: Iterable[Call[R]], /) -> list[AsyncHandle[R]]:
        """Submit many tasks with few requests."""
        asked = [calls.of(each, (), {}) for each in tasks]
        ids = await self._run(self._with.submit(asked))
        return [AsyncHandle(self, call, task_id) for call, task_id in zip(asked, ids, strict=True)]

    @overload
    async def map(self, task: TaskFunction[..., R], inputs: Iterable[Any], /) -> list[R]: ...
    @overload
    async def map(self, task: str, inputs: Iterable[Any], /, **options: Unpack[Options]) -> list[Any]: ...
    async def map(self, task: Any, inputs: Iterable[Any], /, **options: Any) -> list[Any]:
        """Run a task for each input and return the results in order."""
        return await self.gather(await self.batch([calls.of(task, (each,), options) for each in inputs]))

    async def group(self, tasks: Iterable[Call[R]], /, then: Callback[R, S]) -> AsyncHandle[S]:
        """Run these tasks, and when all have ended `then` with the list of their results, which need not pass
        through this program. Return the handle of `then`. If one fails, `then` is cancelled; with
        `then.options(on_failure="run")` it runs, and gets None for that one."""
        parts = await self.batch(calls.group(tasks, then))
        return await self.submit(calls.of(then, ([each.output for each in parts],), {}))

    @overload
    def handle(self, task_id: str, task: StreamFunction[..., Y, R]) -> AsyncStreamHandle[Y, R]: ...
    @overload
    def handle(self, task_id: str, task: TaskFunction[..., R] | None = None) -> AsyncHandle[R]: ...
    def handle(self, task_id: str, task: TaskFunction[..., Any] | None = None) -> AsyncHandle[Any]:
        """Return the handle of a task that was submitted elsewhere; `task` is whose result it has."""
        kind = AsyncStreamHandle if isinstance(task, StreamFunction) else AsyncHandle
        return kind(self, calls.known(task), task_id)

    async def wait(
        self,
        handles: Iterable[AsyncHandle[Any]],
        timeout: float | None = None,
    ) -> None:
        """Wait until all these tasks have ended, however they ended; raise `TimedOut`."""
        await self._run(self._with.wait(calls.handles(handles), timeout))

    @overload
    async def gather(
        self,
        handles: Iterable[AsyncHandle[R]],
        timeout: float | None = None,
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    async def gather(
        self, handles: Iterable[AsyncHandle[R]], timeout: float | None = None, *, return_exceptions: bool
    ) -> list[R | ClientError]: ...
    async def gather(
        self,
        handles: Iterable[AsyncHandle[R]],
        timeout: float | None = None,
        *,
        return_exceptions: bool = False,
    ) -> Any:
        """Wait for these tasks and return their results in order: see `Client.gather`."""
        asked = calls.handles(handles)
        return await self._run(self._with.gather(asked, timeout, return_exceptions=return_exceptions))

    def as_completed(
        self, handles: Iterable[AsyncHandle[R]], timeout: float | None = None
    ) -> AsyncIterator[AsyncHandle[R]]:
        """Yield the handles of these tasks as they end."""
        return self._emitted(self._with.wait(calls.handles(handles), timeout))

    async def cancel(self, *handles: AsyncHandle[Any]) -> list[bool]:
        """Cancel tasks; return for each False if it had ended otherwise."""
        done = await self._run(self._with.cancel([each.id for each in calls.handles(handles)]))
        return [done[each.id] for each in handles]

    async def upload(self, path: str | os.PathLike[str], *, name: str = "") -> File:
        """Send a file to the server, and return what stands for it: see `Client.upload`."""
        return await self._run(transfer.send(self._with, Path(path), name))

    async def download(self, file: File | str, to: str | os.PathLike[str] = ".") -> Path:
        """Receive a file, and return its path: see `Client.download`."""
        return await self._run(transfer.receive(self._with, transfer.named(file), Path(to)))

    async def delete(self, file: File | str) -> None:
        """Delete a file on the server."""
        await self._run(transfer.remove(self._with, transfer.named(file)))

    def events(self, after: str = "") -> AsyncIterator[Event]:
        """Yield what happens in the cluster from now on, or after the event with this id."""
        return self._emitted(self._with.events(after))

    async def _run(self, steps: Steps[R]) -> R:
        line = _Line(self._connections(), self.place.url)
        try:
            step = next(steps)
            while True:
                step = steps.send(await line.perform(step))
        except StopIteration as ended:
            result: R = ended.value
            return result
        finally:
            line.close()

    async def _emitted(self, steps: Steps[None]) -> AsyncIterator[Any]:
        line = _Line(self._connections(), self.place.url)
        try:
            step = next(steps)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                step = steps.send(await line.perform(step))
        except StopIteration:
            return
        finally:
            line.close()

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session, self._loop = _session(self.place), asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError(
                "this AsyncClient has connections in another event loop; give each loop its own: "
                "`async with AsyncClient() as client`"
            )
        return self._session


class _Line:
    """Performs the steps of one conversation."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._answer: aiohttp.ClientResponse | None = None

    async def perform(self, step: Step) -> Answer:
        match step:
            case Ask():
                return await self._ask(step)
            case Open(request):
                return await self._open(request)
            case Read(within_s):
                return await self._read(within_s)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    def close(self) -> None:
        """Leave the stream; a connection with an answer that was not read is of no more use."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    async def _ask(self, request: Ask) -> Reply | Lost:
        reply = await self._open(request)
        if isinstance(reply, Lost) or reply.status >= 400:
            return reply
        body = await self._rest(request.answer_s)
        return body if isinstance(body, Lost) else Reply(reply.status, body, reply.retry_after)

    async def _open(self, request: Ask) -> Reply | Lost:
        """Send a request; with status 200 the answer is left to be read."""
        self.close()
        headers = dict(request.headers)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        limits = aiohttp.ClientTimeout(total=None, sock_connect=dial.CONNECT_S, sock_read=request.answer_s)
        file = await asyncio.to_thread(Path(request.file).open, "rb") if request.file else None
        if file is not None:
            headers["Content-Length"] = str(os.fstat(file.fileno()).st_size)
        try:
            self._answer = answer = await self._session.request(
                request.method,
                self._url + request.path,
                data=file or request.body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            return Lost(_silence(error, self._url, request.answer_s))
        finally:
            if file is not None:
                file.close()
        retry_after = answer.headers.get("Retry-After", "")
        if answer.status < 400:
            return Reply(answer.status, b"", retry_after)
        body = await self._rest(request.answer_s)
        return body if isinstance(body, Lost) else Reply(answer.status, body, retry_after)

    async def _rest(self, within_s: float) -> bytes | Lost:
        """Read the whole answer."""
        pieces = []
        while piece := await self._read(within_s):
            if isinstance(piece, Lost):
                return piece
            pieces.append(piece)
        return b"".join(pieces)

    async def _read(self, within_s: float) -> bytes | Lost:
        """Read the next piece; at the end the connection can be used again."""
        if self._answer is None:
            return b""
        try:
            async with asyncio.timeout(within_s):
                piece = await self._answer.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            self.close()
            return Lost(_silence(error, self._url, within_s))
        if not piece:
            self._answer.release()
            self._answer = None
        return piece


def _session(place: Place) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {place.key}"} if place.key else {}
    trust = dial.trust(place) if place.url.startswith("https:") else True
    return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=trust, limit=0))


def _silence(error: Exception, url: str, answer_s: float) -> str:
    """Return why there was no answer: what the library wraps is what the blocking client sees."""
    match error:
        case aiohttp.ClientConnectorError():
            inner = (
                error.certificate_error
                if isinstance(error, aiohttp.ClientConnectorCertificateError)
                else error.os_error
            )
            return dial.silence(inner, url, answer_s)
        case aiohttp.ServerTimeoutError() | TimeoutError():
            return dial.silence(TimeoutError(), url, answer_s)
        case aiohttp.ClientError():
            return "what answers there is something else; is it https://?"
    return dial.silence(error, url, answer_s)
