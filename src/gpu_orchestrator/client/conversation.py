"""What is said between a client and the cluster manager, as steps for a driver. Does no IO.

Every request is safe to repeat: submissions carry an idempotency key that was made for them. So a lost
connection, a server that restarts and a rate limit are waited out for `patience_s`, with growing pauses. Only
the first contact fails at once if nothing answers: there may be no server.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from gpu_orchestrator.api import importing
from gpu_orchestrator.client import errors
from gpu_orchestrator.client.server_sent import Parser, Sent
from gpu_orchestrator.client.steps import Ask, Emit, Lost, Open, Pause, Read, Reply, Steps
from gpu_orchestrator.client.tasks import Call, Event, Explanation, Pending, TaskInfo

R = TypeVar("R")
PREFIX = "/api/v1"
STREAM = {"Accept": "text/event-stream"}
STREAM_BEGINS = (b":", b"e", b"d", b"i", b"r", b"\n")
"""The first byte of server-sent events: of a comment, or of `event`, `data`, `id` or `retry`."""
SILENCE_S = 60.0
"""The server sends a sign of life on streams more often than this."""
FINISH_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
BUSY = (429, 502, 503, 504)
MOST_TASKS, MOST_BYTES = 1000, 4 << 20
"""Of one request; larger batches are cut into several."""
MOST_WAITED, MOST_CANCELLED = 10_000, 1000
TRACEBACK = "Traceback (most recent call last):"

_encode = msgspec.json.Encoder().encode
_info = msgspec.json.Decoder(TaskInfo)


class _Accepted(msgspec.Struct):
    task_id: str


class _Batch(msgspec.Struct):
    tasks: list[_Accepted]


class _Outcome(msgspec.Struct):
    task_id: str
    status: str
    error: str


class _Changed(msgspec.Struct):
    tasks: list[_Outcome]


class _Log(msgspec.Struct):
    text: str
    next: int
    omitted_bytes: int = 0


class _Problem(msgspec.Struct):
    message: str
    code: str = ""
    details: dict[str, Any] = {}


class _ErrorBody(msgspec.Struct):
    error: _Problem


@dataclass(slots=True)
class Conversation:
    """`advice` says what to do if nothing answers, `key_found` where the key is from; `now` is a clock,
    `chance` from 0 to 1, `new_key` makes idempotency keys. `met`: a server has answered once."""

    url: str
    advice: str
    now: Callable[[], float]
    chance: Callable[[], float]
    new_key: Callable[[], str]
    has_key: bool = True
    key_found: str = ""
    patience_s: float = 60.0
    met: bool = False

    def submit(self, calls: Sequence[Call[Any]]) -> Steps[list[str]]:
        """Submit tasks; return their ids."""
        if module := importing.current():
            raise errors.BadArguments(
                f"{module} submits a task while a worker imports it, and would do so for each task; put that "
                'under `if __name__ == "__main__":`, or into a program of its own'
            )
        if len(calls) == 1:
            has_key = bool(calls[0].options.get("idempotency_key"))
            key = {} if has_key else {"Idempotency-Key": self.new_key()}
            reply = yield from self._ask(Ask("POST", f"{PREFIX}/tasks", calls[0].encoded(), key))
            return [_decoded(reply, _Accepted, self.url).task_id]
        ids: list[str] = []
        parts = list(_parts([each.encoded() for each in calls]))
        if len(parts) > 1 and any(each.gang_name for each in calls):
            raise errors.BadArguments(
                f"tasks of one gang must come with one request, and these {len(calls)} take {len(parts)}; "
                "submit each gang with a batch of its own"
            )
        for bodies in parts:
            body, key = b'{"tasks":[%b]}' % b",".join(bodies), {"Idempotency-Key": self.new_key()}
            try:
                reply = yield from self._ask(Ask("POST", f"{PREFIX}/tasks/batch", body, key))
            except errors.ClientError as error:
                raise _after(error, ids, len(calls)) from None
            ids += [each.task_id for each in _decoded(reply, _Batch, self.url).tasks]
        return ids

    def info(self, task_id: str) -> Steps[TaskInfo]:
        reply = yield from self._ask(Ask("GET", path(task_id)))
        return _decoded(reply, TaskInfo, self.url)

    def explain(self, task_id: str) -> Steps[Explanation]:
        reply = yield from self._ask(Ask("GET", path(task_id, "/explain")))
        return _decoded(reply, Explanation, self.url)

    def cancel(self, ids: Sequence[str]) -> Steps[dict[str, bool]]:
        """Cancel tasks. Return for each whether it was still to be cancelled."""
        done: dict[str, bool] = {}
        for at in range(0, len(ids), MOST_CANCELLED):
            body = _encode({"task_ids": ids[at : at + MOST_CANCELLED]})
            reply = yield from self._ask(Ask("POST", f"{PREFIX}/tasks/cancel", body))
            for each in _decoded(reply, _Changed, self.url).tasks:
                if not each.status:
                    raise errors.NotFound(each.error, 404)
                done[each.task_id] = each.status in ("cancelled", "cancelling")
        return done

    def wait(self, pending: Sequence[Pending[Any]], timeout: float | None) -> Steps[None]:
        """Emit each of these as its task ends, those that are known to have ended first."""
        ending = Ending(self, pending, timeout)
        while ending.left:
            for each in (yield from ending.next()):
                yield Emit(each)

    def gather(
        self, pending: Sequence[Pending[R]], timeout: float | None, *, return_exceptions: bool
    ) -> Steps[list[R | errors.ClientError]]:
        """Return the results in order. Raise the first failure as it happens, unless errors are wanted."""
        ending = Ending(self, pending, timeout)
        found: dict[str, R | errors.ClientError] = {}
        while ending.left:
            for each in (yield from ending.next()):
                if each.id not in found:
                    try:
                        found[each.id] = yield from self.outcome(each, traceback=not return_exceptions)
                    except (errors.TaskFailed, errors.NotFound, errors.BadResult) as error:
                        if not return_exceptions:
                            raise
                        found[each.id] = error
        return [found[each.id] for each in pending]

    def result(self, pending: Pending[R], timeout: float | None) -> Steps[R]:
        """Return the result of one task once it has ended."""
        yield from Ending(self, [pending], timeout).next()
        result = yield from self.outcome(pending)
        return result

    def outcome(self, pending: Pending[R], *, traceback: bool = True) -> Steps[R]:
        """Return the result of a task that has ended, or raise why it has none."""
        info = pending.known
        assert info is not None  # noqa: S101 - `Ending` has seen it end
        if info.status == "completed":
            result = bytes(info.result)
            if result == b"null" and info.result_bytes > len(result):
                result = yield from self._ask(Ask("GET", path(info.task_id, "/result")))
            return pending.decode(result)
        if info.status == "missing":
            raise errors.NotFound(f"there is no task {info.task_id}, or no longer", 404)
        printed = ""
        if traceback and info.status == "failed":
            printed = yield from self._log_of(info.task_id)
        raise _failure(info, printed)

    def logs(self, task_id: str, *, follow: bool) -> Steps[None]:
        """Emit the lines that a task has printed, and those that it prints until it has ended."""
        at, rest = 0, ""
        while True:
            reply = yield from self._ask(Ask("GET", path(task_id, f"/logs?after={at}")))
            part = _decoded(reply, _Log, self.url)
            *lines, rest = (rest + part.text).split("\n")
            for line in lines:
                yield Emit(line)
            if part.next <= at or not part.text:
                break
            at = part.next
        if follow:
            rest = yield from self._followed(task_id, at, rest)
        if rest:
            yield Emit(rest)

    def _followed(self, task_id: str, at: int, rest: str) -> Steps[str]:
        stream = Stream(self, lambda: Ask("GET", path(task_id, f"/logs?after={at}"), headers=STREAM))
        while (sent := (yield from stream.next())) is not None and sent.name != "end":
            if sent.name == "log":
                part = msgspec.json.decode(sent.data, type=_Log)
                at = part.next
                *lines, rest = (rest + part.text).split("\n")
                for line in lines:
                    yield Emit(line)
        return rest

    def events(self, after: str) -> Steps[None]:
        """Emit what happens in the cluster, without end; each event once, also over lost connections."""
        at = after
        stream = Stream(self, lambda: Ask("GET", f"{PREFIX}/events{query({'after': at})}", headers=STREAM))
        while (sent := (yield from stream.next())) is not None:
            at = sent.id or at
            if sent.name and sent.data:
                told = msgspec.json.decode(sent.data)
                yield Emit(Event(sent.id, sent.name, told.get("data") or {}))

    def _log_of(self, task_id: str) -> Steps[str]:
        """Return the traceback of a failed task; empty if the server cannot tell."""
        try:
            reply = yield from self._ask(Ask("GET", path(task_id, "/logs")))
            text = _decoded(reply, _Log, self.url).text
        except errors.ClientError:
            return ""
        at = text.rfind(TRACEBACK)
        return text[at:] if at >= 0 else ""

    def ask(self, request: Ask, kind: type[R]) -> Steps[R]:
        """Send a request until it is answered, and return the answer."""
        reply = yield from self._ask(request)
        return _decoded(reply, kind, self.url)

    def _ask(self, request: Ask) -> Steps[bytes]:
        """Send a request until it is answered, and return the body; raise what went wrong."""
        until = self.now() + self.patience_s
        for failures in count():
            reply = yield request
            if isinstance(reply, Reply) and reply.status < 400:
                self.met = True
                return reply.body
            yield Pause(self._pause_s(reply, failures, until))
        raise AssertionError("the loop has no end")

    def _pause_s(self, reply: Reply | Lost, failures: int, until: float) -> float:
        """Return how long to wait before the next try; raise if there is to be none."""
        pause_s = min(FIRST_PAUSE_S * 2.0**failures, LONGEST_PAUSE_S) * (0.5 + self.chance() / 2)
        error: errors.ClientError
        if isinstance(reply, Lost):
            error = errors.Unreachable(
                f"no cluster manager answers at {self.url} ({reply.why}); {self.advice}"
            )
            if reply.lasting or not self.met:
                raise error
        else:
            error = self._refusal(reply)
            if reply.status not in BUSY:
                raise error
            if reply.retry_after.isdigit():
                pause_s = max(pause_s, float(reply.retry_after))
        if self.now() + pause_s > until:
            raise error
        return pause_s

    def _refusal(self, reply: Reply) -> errors.ClientError:
        try:
            problem = msgspec.json.decode(reply.body, type=_ErrorBody).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if reply.status not in BUSY:
                return _is_another(self.url)
            problem = _Problem(f"{self.url} answers with {reply.status}")
        match reply.status:
            case 401 if not self.has_key:
                said = f"{self.url} asks for a key; run `gpu-orchestrator login {self.url}`, or set API_KEY"
                return errors.NotAllowed(said, 401)
            case 401 if self.key_found:
                said = f"{problem.message} (the key is from {self.key_found})"
                return errors.NotAllowed(said, 401, problem.details)
            case 401 | 403:
                return errors.NotAllowed(problem.message, reply.status, problem.details)
            case 404:
                return errors.NotFound(problem.message, 404, problem.details)
            case 429 | 502 | 503 | 504:
                wait_s = float(reply.retry_after) if reply.retry_after.isdigit() else 0.0
                return errors.Busy(problem.message, reply.status, problem.details, wait_s)
        return errors.Refused(problem.message, reply.status, problem.details)


class Ending:
    """Sees tasks end, with one request for many. `left`: those that have not ended or were not handed out."""

    def __init__(
        self, conversation: Conversation, pending: Sequence[Pending[Any]], timeout: float | None
    ) -> None:
        self._with, self._timeout = conversation, timeout
        self._deadline = None if timeout is None else conversation.now() + timeout
        self.left: dict[str, list[Pending[Any]]] = {}
        for each in pending:
            self.left.setdefault(each.id, []).append(each)
        known = {each.id: each.known for each in pending if each.known is not None and each.known.has_ended}
        self._ended = deque(known.values())
        self._unasked = [name for name in self.left if name not in known]
        self._asked: dict[str, None] = {}
        self._stream: Stream | None = None

    def next(self) -> Steps[list[Pending[Any]]]:
        """Return the handles of the next task that has ended; raise `TimedOut`."""
        while not self._ended:
            if self._stream is None:
                self._asked = dict.fromkeys(self._unasked[:MOST_WAITED])
                del self._unasked[:MOST_WAITED]
                self._stream = Stream(self._with, self._request, self._deadline)
            sent = yield from self._stream.next()
            if sent is None:
                raise errors.TimedOut(_late(list(self.left), self._timeout or 0), list(self.left))
            if sent.name in ("task", "missing"):
                self._heard(_info.decode(sent.data))
            if not self._asked:
                yield from self._stream.finish()
                self._stream = None
        info = self._ended.popleft()
        found = self.left.pop(info.task_id)
        for each in found:
            each.known = info
        return found

    def _heard(self, info: TaskInfo) -> None:
        if info.task_id in self._asked:
            del self._asked[info.task_id]
            self._ended.append(info)

    def _request(self) -> Ask:
        return Ask("POST", f"{PREFIX}/tasks/wait", _encode({"task_ids": list(self._asked)}), STREAM)


class Stream:
    """One stream of events, over as many connections as it takes. `request` says how to go on."""

    def __init__(
        self, conversation: Conversation, request: Callable[[], Ask], deadline: float | None = None
    ) -> None:
        self._with, self._request, self._deadline = conversation, request, deadline
        self._arrived: deque[Sent] = deque()
        self._parser: Parser | None = None
        self._breaks, self._is_new = 0, True

    def next(self) -> Steps[Sent | None]:
        """Return the next event; None once the deadline has passed."""
        while not self._arrived:
            if self._left_s() <= 0:
                return None
            if self._parser is None:
                yield from self._open()
            else:
                piece = yield Read(min(self._left_s(), SILENCE_S))
                if isinstance(piece, bytes) and piece:
                    if self._is_new and piece[:1] not in STREAM_BEGINS:
                        raise _is_another(self._with.url)
                    self._is_new = False
                    self._arrived += self._parser.feed(piece)
                else:
                    yield from self._broke_off()
        self._breaks = 0
        return self._arrived.popleft()

    def _left_s(self) -> float:
        return SILENCE_S if self._deadline is None else self._deadline - self._with.now()

    def _broke_off(self) -> Steps[None]:
        """Go on with a new connection, after a pause that grows while nothing arrives."""
        self._parser = None
        pause_s = min(FIRST_PAUSE_S * 2.0**self._breaks, LONGEST_PAUSE_S, self._left_s())
        self._breaks += 1
        if pause_s > 0:
            yield Pause(pause_s)

    def finish(self) -> Steps[None]:
        """Read the end of a stream that has said all, so that its connection can be used again; `next` asks
        for another."""
        while isinstance(piece := (yield Read(FINISH_S)), bytes) and piece:
            pass
        self._parser = None

    def _open(self) -> Steps[None]:
        until = self._with.now() + self._with.patience_s
        if self._deadline is not None:
            until = min(until, self._deadline)
        for failures in count():
            reply = yield Open(self._request())
            if isinstance(reply, Reply) and reply.status < 400:
                if reply.status != 200:  # a proxy that wants a login, for example
                    raise _is_another(self._with.url)
                self._with.met, self._parser, self._is_new = True, Parser(), True
                return
            yield Pause(self._with._pause_s(reply, failures, until))


def _failure(info: TaskInfo, printed: str) -> errors.TaskFailed:
    why = f"{info.error.type}: {info.error.message}" if info.error else info.reason
    said = f": {why}" if why and why != info.status else ""
    kinds = {"cancelled": errors.TaskCancelled, "dead": errors.TaskDead}
    words = {"cancelled": "was cancelled", "dead": "was given up", "failed": "failed"}
    return kinds.get(info.status, errors.TaskFailed)(
        f"task {info.task_id} {words.get(info.status, info.status)}{said}",
        task_id=info.task_id,
        type=info.error.type if info.error else info.status,
        traceback=printed,
    )


def _after(error: errors.ClientError, ids: Sequence[str], count: int) -> errors.ClientError:
    """Say in the error which part of a batch is submitted already."""
    if ids:
        error.submitted = tuple(ids)
        error.add_note(f"{len(ids)} of {count} tasks were submitted before; `submitted` has their ids")
    return error


def _late(left: Sequence[str], timeout: float) -> str:
    which = f"task {left[0]} has" if len(left) == 1 else f"{len(left)} tasks have"
    return f"{which} not ended within {timeout:g} s; the server goes on with it"


def _parts(bodies: Sequence[bytes]) -> Iterable[list[bytes]]:
    """Cut a batch into requests that every server takes."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) >= MOST_TASKS or size + len(body) > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part


def path(task_id: str, rest: str = "") -> str:
    return f"{PREFIX}/tasks/{quote(task_id, safe='')}{rest}"


def query(words: Mapping[str, str]) -> str:
    given = {name: value for name, value in words.items() if value}
    return f"?{urlencode(given)}" if given else ""


def _decoded(body: bytes, kind: type[R], url: str) -> R:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _is_another(url) from error


def _is_another(url: str) -> errors.Unreachable:
    return errors.Unreachable(f"what answers at {url} is not a cluster manager; check the address")
