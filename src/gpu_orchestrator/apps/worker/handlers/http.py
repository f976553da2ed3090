"""`http`: hands a task on to a server beside the worker, such as vLLM or Ollama.

The operator names the servers, `--upstream NAME=URL`; a task says `{"upstream": NAME, "path": "/v1/models",
"body": {...}}` and can reach no other address. Answers 5xx and lost connections are tried again elsewhere.
"""

import http.client
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gpu_orchestrator.apps.worker.task import BadParameters, Task, Temporary

LONGEST_ANSWER = 16 << 20


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    upstream: str
    path: str = "/"
    method: Literal["GET", "POST"] = "POST"
    body: msgspec.Raw = msgspec.Raw(b"null")
    timeout_s: float = 300.0


class UpstreamRefused(Exception):
    """The server answered that the request is wrong; it would say so again."""


def handle(task: Task) -> dict[str, Any]:
    asked = task.parameters(Parameters)
    base = urlsplit(_base(task, asked))
    if not asked.path.startswith("/") or not asked.path.isprintable() or " " in asked.path:
        raise BadParameters(
            f"path {asked.path!r} is no path on a server; it must begin with / and have no spaces"
        )
    kind = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
    connection = kind(base.hostname or "", base.port, timeout=asked.timeout_s)
    try:
        return _ask(connection, base.path.rstrip("/") + asked.path, asked)
    except (OSError, http.client.HTTPException) as error:
        raise Temporary(f"upstream '{asked.upstream}' did not answer: {error!r}") from error
    finally:
        connection.close()


def _base(task: Task, asked: Parameters) -> str:
    known = task.options.upstreams
    if asked.upstream not in known:
        names = ", ".join(sorted(known)) or "none"
        raise BadParameters(f"upstream '{asked.upstream}' is not named on this worker; named: {names}")
    return known[asked.upstream]


def _ask(connection: http.client.HTTPConnection, path: str, asked: Parameters) -> dict[str, Any]:
    body = bytes(asked.body) if asked.method == "POST" else None
    connection.request(asked.method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read(LONGEST_ANSWER + 1)
    if len(content) > LONGEST_ANSWER:
        raise UpstreamRefused(f"upstream '{asked.upstream}' answered more than {LONGEST_ANSWER >> 20} MiB")
    if answer.status >= 500:
        raise Temporary(f"upstream '{asked.upstream}' answered {answer.status} {answer.reason}")
    if answer.status >= 400:
        text = content[:500].decode(errors="replace")
        raise UpstreamRefused(f"upstream '{asked.upstream}' answered {answer.status} {answer.reason}: {text}")
    return {"status": answer.status, "body": _json_or_text(content)}


def _json_or_text(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content.decode(errors="replace")
