"""One request to the server at a time, or a stream of its events. Shared by the client commands.

It uses the standard library: the usual command is one short request, and should start as fast as it answers.
"""

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpu_orchestrator.cli import output, where
from gpu_orchestrator.cli.options import Server
from gpu_orchestrator.cli.refusals import in_words
from gpu_orchestrator.cli.where import BadPlace, Place
from gpu_orchestrator.client import dial
from gpu_orchestrator.client.server_sent import Parser

PREFIX = "/api/v1"
ANSWER_S = 60.0
SILENCE_S = 60.0
"""The server sends a sign of life on streams more often than this."""
AGAIN_S = 1.0

Query = Mapping[str, object] | Sequence[tuple[str, object]]


class CannotAsk(Exception):
    """The server does not answer, or refused the request; the message is for the user."""


class Refused(CannotAsk):
    """The server refused the request. `retry_after_s` is 0 unless it may be repeated."""

    def __init__(self, message: str, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class Unreachable(CannotAsk):
    """Nothing answers, or not as a cluster manager does."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str
    name: str
    data: Any


def ask(
    server: Server,
    method: str,
    path: str,
    *,
    body: Any = None,
    query: Query = (),
    answer_s: float = ANSWER_S,
) -> Any:
    """Send one request; return the decoded answer, or end the command with a line that says what is wrong."""
    try:
        return request(where.find(server), method, path, body=body, query=query, answer_s=answer_s)
    except (CannotAsk, BadPlace) as error:
        output.fail(error)


def request(
    place: Place,
    method: str,
    path: str,
    *,
    body: Any = None,
    query: Query = (),
    answer_s: float = ANSWER_S,
) -> Any:
    """Send one request and return the decoded answer; raise `CannotAsk`."""
    with _answer(place, method, _target(path, query), body=body, answer_s=answer_s) as answer:
        content = answer.read()
        retry_after = answer.headers.get("Retry-After", "")
    decoded = _decoded(content, place)
    if answer.status >= 400:
        message = decoded["error"]["message"] if _is_error(decoded) else str(decoded)
        wait_s = float(retry_after) if retry_after.isdigit() else 0.0
        raise Refused(in_words(answer.status, message, place), answer.status, wait_s)
    return decoded


def follow(place: Place, path: str, *, query: Query = (), after: str = "") -> Iterator[Event]:
    """Yield the events of a stream, and go on after a lost connection where it ended; raise `CannotAsk` if
    the server refuses. The caller ends it."""
    while True:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        try:
            with _answer(place, "GET", _target(path, query), headers=headers, answer_s=SILENCE_S) as answer:
                if answer.status >= 400:
                    decoded = _decoded(answer.read(), place)
                    message = decoded["error"]["message"] if _is_error(decoded) else str(decoded)
                    raise Refused(in_words(answer.status, message, place), answer.status)
                for event in _events(answer):
                    after = event.id or after
                    yield event
        except Unreachable:
            if not after:
                raise
        time.sleep(AGAIN_S)


def part(name: str) -> str:
    """Return a name as one part of a path."""
    if name in ("", ".", ".."):
        output.fail(f"'{name}' cannot be an id or a name; give the one that a list shows")
    return quote(name, safe="", errors="surrogateescape")


def _target(path: str, query: Query) -> str:
    pairs = query.items() if isinstance(query, Mapping) else query
    asked = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    words = urlencode(asked, errors="surrogateescape")
    return f"{PREFIX}{path}{'?' if words else ''}{words}"


@contextmanager
def _answer(
    place: Place,
    method: str,
    target: str,
    *,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    answer_s: float = ANSWER_S,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and yield the answer, whatever its status; raise `Unreachable`."""
    connection = _connection(place)
    sent = {**(headers or {}), **({"Authorization": f"Bearer {place.key}"} if place.key else {})}
    content = None if body is None else json.dumps(body).encode()
    if content is not None:
        sent["Content-Type"] = "application/json"
    try:
        connection.connect()
        connection.sock.settimeout(answer_s)
        connection.request(method, urlsplit(place.url).path + target, body=content, headers=sent)
        yield connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(
            f"the certificate of {place.url} is not trusted ({error.verify_message}); "
            "give the certificate of its issuer with --ca FILE"
        ) from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise Unreachable(_silence(error, place, answer_s)) from error
    finally:
        connection.close()


def _connection(place: Place) -> http.client.HTTPConnection:
    try:
        return dial.connection(place)
    except BadPlace as error:
        raise CannotAsk(str(error)) from error


def _silence(error: Exception, place: Place, answer_s: float) -> str:
    start = "start one with `gpu-orchestrator up`, or " if place.found != "--url" else ""
    why = dial.silence(error, place.url, answer_s)
    return (
        f"no cluster manager answers at {place.url} ({why}); {start}name another with --url or "
        "`gpu-orchestrator login URL`"
    )


def _decoded(content: bytes, place: Place) -> Any:
    try:
        return json.loads(content or b"null")
    except (ValueError, RecursionError) as error:
        raise Unreachable(
            f"what answers at {place.url} is not a cluster manager; check the address"
        ) from error


def _is_error(answer: Any) -> bool:
    return (
        isinstance(answer, dict)
        and isinstance(answer.get("error"), dict)
        and isinstance(answer["error"].get("message"), str)
    )


def _events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    """Yield the events of one connection until it ends."""
    parser = Parser()
    while line := answer.readline():
        for sent in parser.feed(line):
            if sent.name or sent.data:
                yield Event(sent.id, sent.name, json.loads(sent.data or "null"))
            else:
                yield Event(sent.id, "", None)  # where the stream begins
