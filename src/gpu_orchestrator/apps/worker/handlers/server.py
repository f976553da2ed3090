"""A model that a server holds which the worker starts: vLLM, llama.cpp, Ollama, or another with OpenAI's API.

Operators allow it: `worker --model server=gpu_orchestrator.apps.worker.handlers.server:Server`. Tasks are
those of `text_generation` and `embedding`. The text is always asked for in pieces, so a task that is
cancelled ends the connection, and the server its work.
"""

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import msgspec

from gpu_orchestrator.apps.worker.handlers.server_process import LOOK_S, ServerProcess
from gpu_orchestrator.apps.worker.task import BadParameters, Model, Task, Temporary

LONGEST_LINE = 1 << 20
LONGEST_ANSWER = 64 << 20
DATA, DONE = b"data:", b"[DONE]"


class Server:
    def load(self, model: Model) -> None:
        self.process = ServerProcess(model)
        self.process.start(lambda: None, model.progress)

    def processes(self) -> tuple[int, ...]:
        """Return the server, which may be another than after the load."""
        return self.process.pids()

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(dict[str, Any])
        path, body = _request(asked, self.process.served)
        self.process.ensure(task.check, task.sleep, task.progress)
        connection, over = self.process.connect(), Event()
        watcher = Thread(target=_until_cancelled, args=(task, connection, over), daemon=True)
        try:
            connection.connect()
            watcher.start()
            connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            _check(answer)
            return (
                _vectors(answer)
                if "input" in body
                else _text(task, answer, is_sent=bool(asked.get("stream")))
            )
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            task.check()
            how = self.process.exit() or f"did not answer: {error!r}"
            raise Temporary(f"the server of model {self.process.served!r} {how}") from error
        finally:
            over.set()
            if watcher.ident is not None:
                watcher.join()
            connection.close()


def _request(asked: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    """Return where to ask, and what."""
    rest = {name: value for name, value in asked.items() if name not in ("stream", "texts")}
    if "texts" in asked:
        return "/v1/embeddings", {**rest, "model": model, "input": asked["texts"], "encoding_format": "float"}
    body = {**rest, "model": model, "stream": True, "stream_options": {"include_usage": True}}
    if "messages" in asked:
        return "/v1/chat/completions", body
    if "prompt" in asked:
        return "/v1/completions", body
    raise BadParameters("give one of messages, prompt and texts")


def _check(answer: http.client.HTTPResponse) -> None:
    """Raise what the server refuses."""
    if answer.status == 200:
        return
    said = answer.read(8192).decode(errors="replace")
    if 400 <= answer.status < 500 and answer.status not in (408, 429):
        raise BadParameters(f"the model's server answered {answer.status}: {_message(said)}")
    raise Temporary(f"the model's server answered {answer.status}: {_message(said)}")


def _message(said: str) -> str:
    try:
        found = msgspec.json.decode(said)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return said[:1000]
    return str(found)[:1000]


def _text(task: Task, answer: http.client.HTTPResponse, *, is_sent: bool) -> dict[str, Any]:
    """Return the whole text; send its pieces if the task wants them."""
    pieces: list[str] = []
    found: dict[str, Any] = {"finish_reason": "stop"}
    for chunk in _chunks(answer):
        task.check()
        usage = chunk.get("usage") or {}
        found |= {each: usage[each] for each in ("prompt_tokens", "completion_tokens") if each in usage}
        for choice in chunk.get("choices") or ():
            found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]
            if piece := choice.get("text") or (choice.get("delta") or {}).get("content"):
                pieces.append(piece)
                if is_sent:
                    task.send({"text": piece})
    return {"text": "".join(pieces), **found}


def _chunks(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; raise if it ends before its end."""
    while line := answer.readline(LONGEST_LINE):
        if line.startswith(DATA):
            data = line[len(DATA) :].strip()
            if data == DONE:
                return
            chunk = msgspec.json.decode(data, type=dict[str, Any])
            if "error" in chunk:
                raise Temporary(f"the model's server stopped: {_message(data.decode(errors='replace'))}")
            yield chunk
    raise ConnectionError("the stream broke off")


def _vectors(answer: http.client.HTTPResponse) -> dict[str, Any]:
    found = msgspec.json.decode(answer.read(LONGEST_ANSWER), type=dict[str, Any])
    data = sorted(found["data"], key=lambda each: int(each["index"]))
    return {
        "embeddings": [each["embedding"] for each in data],
        "tokens": (found.get("usage") or {}).get("prompt_tokens", 0),
    }


def _until_cancelled(task: Task, connection: http.client.HTTPConnection, over: Event) -> None:
    """End the connection if the task is cancelled while it waits for the server."""
    sock = connection.sock  # the connection forgets it once the answer begins
    while not over.wait(LOOK_S):
        if task.is_cancelled:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            return
