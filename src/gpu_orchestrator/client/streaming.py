"""What is said while a client follows the partial results of a task, as steps for a driver. Does no IO.

The server knows the reader by a name: the task waits for it rather than lose what it has not got.
"""

import msgspec

from gpu_orchestrator.client import errors
from gpu_orchestrator.client.conversation import STREAM, Conversation, Stream, path, query
from gpu_orchestrator.client.steps import Ask, Emit, Steps
from gpu_orchestrator.client.tasks import Pending


class _Values(msgspec.Struct):
    next: str
    values: list[msgspec.Raw]
    first: int = 0
    missed: int = 0


class _Began(msgspec.Struct):
    attempt: int


class _End(msgspec.Struct):
    status: str


def values(talk: Conversation, pending: Pending[object], after: str, *, skip_missed: bool) -> Steps[None]:
    """Emit what a task sends until it has ended, each value once; raise if it ends without a result.

    Who follows it again, after a break or `StreamRestarted`, does so under the same name: the task would wait
    for a minute for a reader that comes no more."""
    reader, pending.reader = pending.reader or talk.new_key(), ""
    try:
        yield from _followed(talk, pending, after, reader, skip_missed=skip_missed)
    finally:
        pending.reader = reader


def _followed(
    talk: Conversation, pending: Pending[object], after: str, reader: str, *, skip_missed: bool
) -> Steps[None]:
    at, target = after, path(pending.id, "/stream")
    stream = Stream(talk, lambda: Ask("GET", target + query({"after": at, "reader": reader}), headers=STREAM))
    while (sent := (yield from stream.next())) is not None:
        match sent.name:
            case "values":
                part = msgspec.json.decode(sent.data, type=_Values)
                if part.missed and not skip_missed:
                    raise _missed(pending.id, part)
                for value in part.values:
                    yield Emit(pending.decode_value(bytes(value)))
                at = sent.id
            case "attempt":
                attempt = msgspec.json.decode(sent.data, type=_Began).attempt
                if at and not at.startswith(f"{attempt}-") and not at.endswith("-0"):
                    raise _restarted(pending.id, attempt)
                at = sent.id
            case "more":
                yield from stream.finish()
            case "end":
                yield from stream.finish()
                yield from _ended(talk, pending, msgspec.json.decode(sent.data, type=_End).status)
                return


def _ended(talk: Conversation, pending: Pending[object], status: str) -> Steps[None]:
    """Raise why a task whose stream has ended has no result, if it has none."""
    if status != "completed":
        pending.known = yield from talk.info(pending.id)
        if pending.known.has_ended and pending.known.status != "completed":
            yield from talk.outcome(pending)


def _missed(task_id: str, part: _Values) -> errors.ValuesMissed:
    attempt = part.next.partition("-")[0]
    return errors.ValuesMissed(
        f"{part.missed} values of task {task_id} are no longer kept; go on behind them with "
        "stream(after=error.after), or skip them with skip_missed=True",
        count=part.missed,
        after=f"{attempt}-{part.first}",
    )


def _restarted(task_id: str, attempt: int) -> errors.StreamRestarted:
    return errors.StreamRestarted(
        f"attempt {attempt} at task {task_id} began, so the values so far are superseded; "
        "call stream() again for those of this attempt",
        attempt=attempt,
    )
