"""`http`: forwards a task to a server beside the worker, such as vLLM or Ollama.

The operator names the servers, `--upstream NAME=URL`; a task has `{"upstream": NAME, "path": "/v1/models",
"body": {...}}` and cannot reach any other address, nor leave the path of that URL. Headers, such as the
server's key, come from the operator too. After a 5xx answer or a lost connection the task is retried
elsewhere.
"""

import http.client
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from gpu_orchestrator.apps.worker.task import LARGEST_RESULT, BadParameters, Task, Temporary

LONGEST_ANSWER = LARGEST_RESULT
"""An answer is the task's result, so it may not be larger than one."""


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    upstream: str
    path: str = "/"
    method: Literal["GET", "POST"] = "POST"
    body: msgspec.Raw = msgspec.Raw(b"null")
    timeout_s: float = 300.0


class UpstreamRefused(Exception):
    """The server rejected the request, and would reject it again."""


def handle(task: Task) -> dict[str, Any]:
    parameters = task.parameters(Parameters)
    base = urlsplit(_base(task, parameters))
    _check_path(parameters.path)
    kind = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
    connection = kind(base.hostname or "", base.port, timeout=parameters.timeout_s)
    try:
        headers = task.options.upstream_headers.get(parameters.upstream, {})
        return _request(connection, base.path.rstrip("/") + parameters.path, parameters, headers)
    except (OSError, http.client.HTTPException) as error:
        raise Temporary(f"upstream '{parameters.upstream}' did not answer: {error!r}") from error
    finally:
        connection.close()


def _check_path(path: str) -> None:
    if not path.startswith("/") or not path.isprintable() or not path.isascii() or " " in path:
        raise BadParameters(f"path {path!r} is not a valid path; it must begin with / and have no spaces")
    plain = path.partition("?")[0]
    for _ in range(3):  # servers differ in how often they decode
        plain = unquote(plain)
    if any(part in (".", "..") for part in plain.replace("\\", "/").split("/")):
        raise BadParameters(f"path {path!r} has a part . or .., which could leave the upstream's own path")


def _base(task: Task, parameters: Parameters) -> str:
    known = task.options.upstreams
    if parameters.upstream not in known:
        names = ", ".join(sorted(known)) or "none"
        raise BadParameters(f"upstream '{parameters.upstream}' is not known to this worker; known: {names}")
    return known[parameters.upstream]


def _request(
    connection: http.client.HTTPConnection, path: str, parameters: Parameters, headers: Mapping[str, str]
) -> dict[str, Any]:
    body = bytes(parameters.body) if parameters.method == "POST" else None
    connection.request(parameters.method, path, body, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    content = answer.read(LONGEST_ANSWER + 1)
    if len(content) > LONGEST_ANSWER:
        raise UpstreamRefused(
            f"upstream '{parameters.upstream}' answered more than {LONGEST_ANSWER >> 20} MiB"
        )
    if answer.status >= 500:
        raise Temporary(f"upstream '{parameters.upstream}' answered {answer.status} {answer.reason}")
    if answer.status >= 400:
        text = content[:500].decode(errors="replace")
        raise UpstreamRefused(
            f"upstream '{parameters.upstream}' answered {answer.status} {answer.reason}: {text}"
        )
    return {"status": answer.status, "body": _json_or_text(content)}


def _json_or_text(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content.decode(errors="replace")
