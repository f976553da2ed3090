"""Ask a server with OpenAI's API for a task of `text_generation` or `embedding`. `server` calls it.

The text is always asked for in pieces, so a task that is cancelled ends the connection, and the server its
work. Redirects are not followed.
"""

import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gpu_orchestrator.apps.worker.task import BadParameters, Task, Temporary

LOOK_S = 0.1
LONGEST_LINE = 1 << 20
LONGEST_ANSWER = 64 << 20
DATA, DONE = b"data:", b"[DONE]"
BUSY = (408, 425, 429)
"""Refusals that say nothing about the request."""


class Broken(Exception):
    """The server did not answer, or not as OpenAI's API would."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a server is, what it calls the model, and what it is sent besides. `url` has no `/v1`."""

    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_s: float | None = None

    def connect(self) -> http.client.HTTPConnection:
        at = urlsplit(self.url)
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        return kind(at.hostname or "", at.port, timeout=self.connect_s)

    def path(self, under: str) -> str:
        return urlsplit(self.url).path.rstrip("/") + under


def answer(task: Task, asked: dict[str, Any], upstream: Upstream) -> dict[str, Any]:
    """Return the result of a task; raise `Broken` if the server is at fault."""
    path, body = _request(asked, upstream.model)
    connection, over = upstream.connect(), Event()
    watcher = Thread(target=_until_cancelled, args=(task, connection, over), daemon=True)
    try:
        connection.connect()
        connection.sock.settimeout(None)
        watcher.start()
        headers = {"Content-Type": "application/json", **upstream.headers}
        connection.request("POST", upstream.path(path), msgspec.json.encode(body), headers)
        said = connection.getresponse()
        _check(said)
        if "input" in body:
            return _vectors(said, len(body["input"]))
        return _text(task, said, is_sent=bool(asked.get("stream")))
    except (OSError, http.client.HTTPException, msgspec.MsgspecError, _Malformed) as error:
        raise Broken(_words(error)) from error
    finally:
        over.set()
        if watcher.ident is not None:
            watcher.join()
        connection.close()


class _Malformed(Exception):
    """The answer is not what OpenAI's API says."""


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        found = self.text or (self.delta or {}).get("content") or ""
        if not isinstance(found, str):
            raise _Malformed(f"a piece of text is {type(found).__name__}")
        return found


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _Vector(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: dict[str, Any] | None = None


_chunk, _vectors_of = msgspec.json.Decoder(_Chunk), msgspec.json.Decoder(_Vectors)


def _request(asked: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    """Return where to ask, and what."""
    rest = {name: value for name, value in asked.items() if name not in ("stream", "texts")}
    if "texts" in asked:
        if not isinstance(asked["texts"], list):
            raise BadParameters("texts is a list of texts")
        return "/v1/embeddings", {**rest, "model": model, "input": asked["texts"], "encoding_format": "float"}
    body = {**rest, "model": model, "stream": True, "stream_options": {"include_usage": True}}
    if "messages" in asked:
        return "/v1/chat/completions", body
    if "prompt" in asked:
        return "/v1/completions", body
    raise BadParameters("give one of messages, prompt and texts")


def _check(said: http.client.HTTPResponse) -> None:
    """Raise what the server refuses."""
    if said.status == 200:
        return
    text = said.read(8192).decode(errors="replace")
    if 300 <= said.status < 400:
        raise Broken(f"it answered {said.status} and names another address; give that one")
    if 400 <= said.status < 500 and said.status not in BUSY:
        raise BadParameters(f"the model's server answered {said.status}: {_message(text)}")
    raise Temporary(f"the model's server answered {said.status}: {_message(text)}")


def _message(said: str) -> str:
    try:
        found = msgspec.json.decode(said)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return said[:1000]
    return str(found)[:1000]


def _text(task: Task, said: http.client.HTTPResponse, *, is_sent: bool) -> dict[str, Any]:
    """Return the whole text; send its pieces if the task wants them."""
    pieces: list[str] = []
    found: dict[str, Any] = {"finish_reason": "stop"}
    for chunk in _chunks(said):
        task.check()
        found |= _counts(chunk.usage)
        for choice in chunk.choices or ():
            found["finish_reason"] = choice.finish_reason or found["finish_reason"]
            if piece := choice.piece:
                pieces.append(piece)
                if is_sent:
                    task.send({"text": piece})
    return {"text": "".join(pieces), **found}


def _counts(usage: dict[str, Any] | None) -> dict[str, int]:
    counts = {each: (usage or {}).get(each) for each in ("prompt_tokens", "completion_tokens")}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _chunks(said: http.client.HTTPResponse) -> Iterator[_Chunk]:
    """Yield the events of a stream; raise if it ends before its end."""
    while line := said.readline(LONGEST_LINE):
        if line.startswith(DATA):
            data = line[len(DATA) :].strip()
            if data == DONE:
                return
            chunk = _chunk.decode(data)
            if chunk.error is not None:
                raise Temporary(f"the model's server stopped: {_message(data.decode(errors='replace'))}")
            yield chunk
        elif len(line) >= LONGEST_LINE:
            raise _Malformed(f"a line is longer than {LONGEST_LINE} bytes")
    raise _Malformed("the stream broke off")


def _vectors(said: http.client.HTTPResponse, count: int) -> dict[str, Any]:
    text = said.read(LONGEST_ANSWER + 1)
    if len(text) > LONGEST_ANSWER:
        raise _Malformed(f"the vectors have more than {LONGEST_ANSWER} bytes")
    found = _vectors_of.decode(text)
    if len(found.data) != count:
        raise _Malformed(f"there are {len(found.data)} vectors for {count} texts")
    data = sorted(found.data, key=lambda each: each.index)
    return {
        "embeddings": [each.embedding for each in data],
        "tokens": _counts(found.usage).get("prompt_tokens", 0),
    }


def _words(error: Exception) -> str:
    if isinstance(error, msgspec.MsgspecError):
        return f"its answer is malformed: {error}"
    if isinstance(error, _Malformed):
        return f"its answer is malformed: {error}"
    return str(error) or repr(error)


def _until_cancelled(task: Task, connection: http.client.HTTPConnection, over: Event) -> None:
    """End the connection if the task is cancelled while it waits for the server."""
    sock = connection.sock  # the connection forgets it once the answer begins
    while not over.wait(LOOK_S):
        if task.is_cancelled:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return
