"""Answer a request in OpenAI's shape for its task: at once when the task has ended, or piece by piece. The
OpenAI routes call it.

A client that goes away, does not read, or is sent away takes its task with it: nobody wants the rest. So does
an error on our side, because the client will ask again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpu_orchestrator.adapters.results.place import ResultError
from gpu_orchestrator.adapters.store import values
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.adapters.store.values import Lines, Place, Reader
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.event_feed import Watcher
from gpu_orchestrator.apps.manager.http import task_changes, value_stream
from gpu_orchestrator.apps.manager.http.acknowledgement import settle
from gpu_orchestrator.apps.manager.http.event_streams import KEEPALIVE_S, SEND_TIMEOUT_S, until_more
from gpu_orchestrator.apps.manager.http.responses import done_before, json_response, until_disconnected
from gpu_orchestrator.apps.manager.http.value_stream import LATER_S, PART_BYTES, SLOWER, SOON_S
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.openai import answers, chunks, problems
from gpu_orchestrator.apps.manager.openai.answers import Generated
from gpu_orchestrator.apps.manager.schema import Answer

log = structlog.get_logger()
WAIT_S = 600.0
MOST_SENT = 8 << 20
_cancelling: set["asyncio.Task[None]"] = set()
_array = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Asked:
    """The task of one request, and who asked. `stops` end the text, whatever the model's handler does."""

    manager: Manager
    key: Key
    task: str
    model: str
    stops: tuple[str, ...] = ()


class WholeAnswer(Response):
    """Waits for the task to end, and answers with what `shown` makes of its result."""

    def __init__(self, asked: Asked, shown: Callable[[bytes], Answer] | None = None) -> None:
        super().__init__()
        self._asked, self._shown = asked, shown
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await settle(self._asked.manager, scope)
            with self._asked.manager.feed.watching(self._asked.key, reads=False) as watcher:
                done = await done_before(
                    self._answer(watcher, scope, receive, send), until_disconnected(receive)
                )
            if done is not None:
                done.result()
        finally:
            await self._give_up()

    async def _give_up(self) -> None:
        """Cancel the task unless it has ended, also if this request is cancelled meanwhile."""
        if self._is_over:
            return
        self._is_over = True
        cancelling = asyncio.create_task(_cancel(self._asked))
        _cancelling.add(cancelling)
        cancelling.add_done_callback(_cancelling.discard)
        await asyncio.shield(cancelling)

    async def _answer(self, watcher: Watcher, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._shown is not None  # noqa: S101 - a stream has an `_answer` of its own
        shown = self._shown(await self._result(await self._ended(watcher)))
        await json_response(shown)(scope, receive, send)

    async def _ended(self, watcher: Watcher) -> Row:
        """Return the task's row once it has ended; raise if this client must leave before."""
        manager, name = self._asked.manager, self._asked.task
        while True:
            done = await done_before(manager.tasks.wait(name, WAIT_S), _until_ended(watcher))
            if done is None:
                raise errors.Unavailable(watcher.end_reason)
            if (row := done.result())["state"] in task.FINAL:
                return row

    async def _result(self, row: Row) -> bytes:
        """Return the result of a task that has ended, however large; raise what the task ended with."""
        self._is_over = True
        if row["state"] != "completed":
            raise problems.of_task(self._asked.task, row["state"], row.get("error"))
        if not row.get("result_at"):
            return (row.get("result") or "null").encode()
        try:
            return b"".join([chunk async for chunk in self._asked.manager.results.stream(row)])
        except ResultError as error:
            raise errors.Unavailable(f"the result cannot be read now: {error}") from error


class TextAnswer(WholeAnswer):
    """A text that was generated. The result of a handler that only yields is what it yielded."""

    def __init__(self, asked: Asked, shown: Callable[[Generated], Answer]) -> None:
        super().__init__(asked)
        self._of = shown

    async def _answer(self, watcher: Watcher, scope: Scope, receive: Receive, send: Send) -> None:
        result = await self._result(await self._ended(watcher))
        sent = await self._sent() if result == b"null" else ""
        found = answers.generated(result, self._asked.model, sent)
        shown = self._of(answers.stopped(found, self._asked.stops))
        await json_response(shown)(scope, receive, send)

    async def _sent(self) -> str:
        asked = self._asked
        part = await value_stream.read(asked.manager, asked.task, asked.key, Place(), MOST_SENT)
        return _text_of(values.lines_of(part, Place()))


class TextStream(WholeAnswer):
    """Sends the text as the task sends it, as server-sent events.

    The status waits for the first words or the end, so that a refusal has a status of its own; but not so
    long that a proxy gives up."""

    def __init__(self, asked: Asked, made: chunks.Chunks, *, with_usage: bool) -> None:
        super().__init__(asked)
        self.media_type = "text/event-stream"
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._made, self._with_usage = made, with_usage
        self._has_sent = False
        """Whether the task has sent any text."""

    async def _answer(self, watcher: Watcher, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._frames(watcher)) as frames:
            first = await anext(frames)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await _send(send, first)
                async for each in frames:
                    await _send(send, each)
            except TimeoutError:
                await self._give_up()  # a client that does not read; the end of the answer waits for it
            except (errors.ApiError, StoreError) as error:
                await _send(send, problems.event_of(_told(error)))
        await send({"type": "http.response.body", "body": b""})

    async def _frames(self, watcher: Watcher) -> AsyncGenerator[bytes]:
        has_begun = False
        stops = chunks.StopFilter(self._asked.stops)
        async with contextlib.aclosing(self._texts(watcher)) as texts:
            async for text in texts:
                if text is None:
                    yield b": waiting\n\n"
                elif shown := stops.feed(text):
                    yield (b"" if has_begun else self._made.first()) + self._made.piece(shown)
                    has_begun = True
        found = await self._found()
        ended = found if self._has_sent else answers.stopped(found, self._asked.stops)
        left = stops.rest() if self._has_sent else ended.text
        yield b"".join(
            [
                b"" if has_begun else self._made.first(),
                self._made.piece(left) if left else b"",
                self._made.last("stop" if stops.is_over else ended.finish_reason),
                self._made.usage(ended) if self._with_usage else b"",
                chunks.DONE,
            ]
        )

    async def _found(self) -> Generated:
        """Return what the task answered at its end."""
        (row,) = await self._asked.manager.tasks.durable_rows([self._asked.task])
        if row is None:
            raise self._asked.manager.tasks.no_task(self._asked.task)
        result = await self._result(row)
        if self._has_sent and result == b"null":
            return Generated("")
        return answers.generated(result, self._asked.model)

    async def _texts(self, watcher: Watcher) -> AsyncGenerator[str | None]:
        """Yield what the task sends until it has ended, and None when it is time for a sign of life."""
        manager, name, key = self._asked.manager, self._asked.task, self._asked.key
        at, pause_s, quiet_s = Place(), SOON_S, 0.0
        with manager.task_values.followers.following(name) as news:
            while True:
                news.clear()
                # Named, so that the task waits for a slow client instead of losing what it has not got.
                reader = Reader(f"openai-{name}"[:64], key.owner, at)
                part = await value_stream.read(manager, name, key, at, PART_BYTES, reader)
                lines = values.lines_of(part, at)
                if lines.missed or (self._has_sent and part.attempt != at.attempt):
                    raise problems.TaskFailed(
                        f"the answer of task {name} was interrupted: its worker was lost, or the store "
                        "is full; ask again",
                        code="answer_interrupted",
                    )
                at = Place(part.attempt, lines.next)
                if lines.text:
                    pause_s, quiet_s, text = SOON_S, 0.0, _text_of(lines)
                    self._has_sent = self._has_sent or bool(text)
                    yield text
                if part.state in task.FINAL and at.number >= part.count:
                    return
                if not lines.text:
                    await until_more(manager.waiters, name, watcher, news, pause_s)
                    quiet_s, pause_s = quiet_s + pause_s, min(pause_s * SLOWER, LATER_S)
                if watcher.end_reason:
                    raise errors.Unavailable(watcher.end_reason)
                if quiet_s >= KEEPALIVE_S:
                    quiet_s = 0.0
                    yield None


def _text_of(lines: Lines) -> str:
    return chunks.text_of(_array.decode(f"[{lines.text.replace(chr(10), ',')}]"))


async def _until_ended(watcher: Watcher) -> None:
    await watcher.ended.wait()


async def _send(send: Send, frames: bytes) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": frames, "more_body": True})


def _told(error: errors.ApiError | StoreError) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        return error
    log.warning("the store failed a stream", error=str(error))  # its message names the store's address
    return errors.Unavailable("the store does not answer; ask again")


async def _cancel(asked: Asked) -> None:
    try:
        await task_changes.cancel(asked.manager, [asked.task], asked.key)
    except StoreError as error:
        log.warning("a task whose client went away runs on", task_id=asked.task, error=str(error))
