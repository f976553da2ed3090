"""Run tasks in this process, for unit tests: no server, no worker, no GPU.

    with testing.local():
        assert train.submit(epochs=3).result() == ...

A submitted task runs at once. Its arguments and its result take the same way as otherwise: they are checked,
written as JSON and read again. What does not fit a worker's JSON fails here, too. So it is with what a
generator yields; it runs to its end before the first value is seen. Files that are uploaded or left by a task
lie in a temporary folder until the end. Options such as `gpus`, `timeout` and
`retries` have no effect.
"""

import asyncio
import io
import re
import shutil
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from gpu_orchestrator.api import files, references
from gpu_orchestrator.api.functions import Unfit
from gpu_orchestrator.client import functions
from gpu_orchestrator.client.blocking import Client
from gpu_orchestrator.client.conversation import PREFIX
from gpu_orchestrator.client.errors import BadResult
from gpu_orchestrator.client.steps import Answer, Ask, Open, Read, Reply, Step

Handlers = Mapping[str, Callable[[Any], Any]]
_TASK = re.compile(rf"{PREFIX}/tasks/([^/]+)(?:/(\w+))?")
_encode = msgspec.json.Encoder().encode


@contextmanager
def local(handlers: Handlers | None = None) -> Iterator[Client]:
    """Let tasks run in this process: those of the client that is yielded, and those that `train.submit(...)`
    submits. `handlers` are functions for other task types, which get the parameters."""
    with TemporaryDirectory() as folder:
        here = Here(handlers or {}, Path(folder))
        with Client(wire=here) as client:
            functions.put_in_place(client)
            files.keep_with(here.keep)
            try:
                yield client
            finally:
                files.keep_with(None)
                functions.put_back()


class Here:
    """Answers a client in place of a server."""

    def __init__(self, handlers: Handlers, folder: Path) -> None:
        self._handlers, self._folder = handlers, folder
        self._files: dict[str, Path] = {}
        self._tasks: dict[str, dict[str, Any]] = {}
        self._logs: dict[str, str] = {}
        self._values: dict[str, list[bytes]] = {}

    def line(self) -> "_Line":
        return _Line(self)

    def close(self) -> None:
        """Keep nothing open."""

    def answer(self, request: Ask) -> Reply:
        path, body = urlsplit(request.path).path, msgspec.json.decode(request.body or b"null")
        match request.method, path.removeprefix(PREFIX):
            case "POST", "/tasks":
                return self._submitted([body])[0]
            case "POST", "/tasks/batch":
                replies = self._submitted(body["tasks"])
                bad = next((each for each in replies if each.status >= 400), None)
                return bad or Reply(202, b'{"tasks":[%b]}' % b",".join(each.body for each in replies))
            case "POST", "/tasks/wait":
                return Reply(200, b"".join(self._event(name) for name in body["task_ids"]))
            case "POST", "/tasks/cancel":
                return _reply({"tasks": [self._ended_already(name) for name in body["task_ids"]]})
            case "GET", "/files":
                return _reply({})
            case "POST", "/files":
                name = dict(parse_qsl(urlsplit(request.path).query))["name"]
                return _reply(self._shown(self.keep(request.file, name).id), 201)
            case method, file if file.startswith("/files/"):
                return self._file(method, *file.removeprefix("/files/").split("/"))
        if path.startswith(f"{PREFIX}/schedules"):
            return _reply({"error": {"message": "schedules need a server; here, submit their task"}}, 422)
        after = dict(parse_qsl(urlsplit(request.path).query)).get("after", "")
        return self._of_one(path, after, is_stream="Accept" in request.headers)

    def keep(self, path: str, name: str) -> files.File:
        """Keep a copy of a file."""
        file_id = f"{files.PREFIX}{token_hex(16)}"
        self._files[file_id] = kept = self._folder / file_id / name
        kept.parent.mkdir()
        shutil.copyfile(path, kept)
        return files.File(file_id, name, kept.stat().st_size)

    def _shown(self, file_id: str) -> dict[str, Any]:
        data = self._files[file_id].read_bytes()
        digest = sha256(data).hexdigest()
        return {
            "file_id": file_id,
            "name": self._files[file_id].name,
            "bytes": len(data),
            "sha256": digest,
        }

    def _file(self, method: str, file_id: str, part: str = "") -> Reply:
        if file_id not in self._files:
            return _reply({"error": {"message": f"there is no file {file_id}"}}, 404)
        if method == "DELETE":
            del self._files[file_id]
            return _reply({})
        return Reply(200, self._files[file_id].read_bytes()) if part else _reply(self._shown(file_id))

    def _of_one(self, path: str, after: str, *, is_stream: bool) -> Reply:
        found = _TASK.fullmatch(path)
        name = unquote(found[1]) if found else ""
        if found is None or name not in self._tasks:
            return _reply({"error": {"message": f"there is no {path} in this process"}}, 404)
        if found[2] == "logs":
            if is_stream:
                return Reply(200, b"event: end\ndata: null\n\n")
            text = self._logs[name][int(after or 0) :]
            return _reply({"text": text, "next": int(after or 0) + len(text)})
        if found[2] == "stream":
            return Reply(200, self._streamed(name, after))
        if found[2] == "explain":
            return _reply({**self._tasks[name], "reason": "it ran in this process"})
        return _reply(self._tasks[name])

    def _streamed(self, name: str, after: str) -> bytes:
        at = int(after.partition("-")[2] or 0)
        values = self._values[name][at:]
        place = b"1-%d" % (at + len(values))
        data = b'{"first":%d,"next":"%b","values":[%b]}' % (at, place, b",".join(values))
        end = b"event: end\ndata: %b\n\n" % _encode({"status": self._tasks[name]["status"]})
        return b"id: %b\nevent: values\ndata: %b\n\n" % (place, data) + end

    def _submitted(self, bodies: list[dict[str, Any]]) -> list[Reply]:
        if any("gang" in each for each in bodies):
            said = "a gang needs a server and workers; here, submit its members as single tasks"
            return [_reply({"error": {"message": said}}, 422)]
        unknown = [each["task_type"] for each in bodies if not self._knows(each["task_type"])]
        if unknown:
            known = ", ".join(sorted([*self._handlers, *functions.REGISTRY])) or "none"
            said = f"unknown task_type {unknown[0]!r}; known in this process: {known}"
            return [_reply({"error": {"message": said}}, 422)]
        if lost := [
            name for each in bodies for name in each.get("depends_on", []) if name not in self._tasks
        ]:
            return [_reply({"error": {"message": f"depends_on: there is no task {lost[0]}"}}, 422)]
        return [_reply({"task_id": self._run(each)}, 202) for each in bodies]

    def _knows(self, task_type: str) -> bool:
        return task_type in self._handlers or task_type in functions.REGISTRY

    def _run(self, body: dict[str, Any]) -> str:
        name = f"local-{len(self._tasks) + 1}"
        shown = {
            "task_id": name,
            "task_type": body["task_type"],
            "attempt": 1,
            "labels": body.get("labels", {}),
        }
        printed, self._values[name] = io.StringIO(), []
        try:
            with redirect_stdout(printed):
                ending = self._ending(body, self._values[name])
        except Exception as error:
            kind = "BadParameters" if isinstance(error, BadParameters) else type(error).__name__
            ending = {"status": "failed", "error": {"type": kind, "message": str(error)}}
            printed.write("".join(traceback.format_exception(error)))
        self._tasks[name] = {**shown, **ending}
        self._logs[name] = printed.getvalue()
        return name

    def _ending(self, body: dict[str, Any], values: list[bytes]) -> dict[str, Any]:
        """Run a task, or cancel it because of a dependency; return what its status shows. Add what it yields
        to `values`."""
        parameters, needed = _encode(body.get("parameters", {})), body.get("depends_on", [])
        without = next((each for each in needed if self._tasks[each]["status"] != "completed"), None)
        if without and body.get("on_failure") != "run":
            return {"status": "cancelled", "reason": f"task {without}, on which it depends, failed"}
        if needed:
            outputs = {name: bytes(self._tasks[name].get("result", b"null")) for name in needed}
            parameters = references.filled(parameters, outputs)
        named = files.named_in(parameters)
        if lost := next((name for name in named if name not in self._files), ""):
            raise FileMissing(f"there is no file {lost}")
        parameters = files.with_paths(parameters, {name: str(self._files[name]) for name in named})
        result = self._result(body["task_type"], parameters, values)
        return {"status": "completed", "result": result, "result_bytes": len(bytes(result))}

    def _result(self, task_type: str, parameters: bytes, values: list[bytes]) -> msgspec.Raw:
        if task_type in self._handlers:
            returned = self._handlers[task_type](msgspec.json.decode(parameters))
            return msgspec.Raw(_encode(_run_out(returned, lambda value: values.append(_encode(value)))))
        function = functions.REGISTRY[task_type]
        try:
            arguments = function.read_arguments(parameters)
        except Unfit as error:
            raise BadParameters(str(error)) from None
        result = function.function(**arguments)
        if function.is_async:  # in a thread: the test may have an event loop of its own
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(asyncio.run, result).result()
        try:
            result = _run_out(result, lambda value: values.append(bytes(function.write_value(value))))
            return function.write_result(result)
        except Unfit as error:
            raise BadResult(str(error)) from None

    def _event(self, name: str) -> bytes:
        if name not in self._tasks:
            return b"event: missing\ndata: %b\n\n" % _encode({"task_id": name})
        return b"event: task\ndata: %b\n\n" % _encode(self._tasks[name])

    def _ended_already(self, name: str) -> dict[str, str]:
        status = self._tasks.get(name, {}).get("status", "")
        return {
            "task_id": name,
            "status": status,
            "error": "it has ended" if status else f"there is no task {name}",
        }


class BadParameters(ValueError):
    """The parameters do not fit the function."""


class FileMissing(LookupError):
    """A task takes a file that is not there."""


class _Line:
    def __init__(self, here: Here) -> None:
        self._here, self._unread = here, b""

    def perform(self, step: Step) -> Answer:
        match step:
            case Ask():
                return self._here.answer(step)
            case Open(request):
                reply = self._here.answer(request)
                if reply.status < 400:
                    self._unread = reply.body
                return reply
            case Read():
                piece, self._unread = self._unread, b""
                return piece
        return None

    def close(self) -> None:
        self._unread = b""


def _run_out(returned: Any, take: Callable[[Any], None]) -> Any:
    """Return a result; if it is a generator, after `take` has got all its values."""
    if isinstance(returned, Generator):
        while True:
            try:
                value = next(returned)
            except StopIteration as ended:
                return ended.value
            take(value)
    if isinstance(returned, AsyncGenerator):

        async def run_out() -> None:
            async for value in returned:
                take(value)

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, run_out()).result()
        return None
    return returned


def _reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, _encode(value))
