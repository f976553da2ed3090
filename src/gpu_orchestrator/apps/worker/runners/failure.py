"""How a failed handler is described: the text for the task's log, and the message of its outcome."""

import traceback
from collections.abc import Iterator
from pathlib import Path

from gpu_orchestrator.apps.worker.task import BadParameters

LONGEST_MESSAGE = 8192
OUR_CODE = str(Path(__file__).parents[1])


def message_of(error: BaseException, advice: str = "") -> str:
    """Return what the error says, or its type if it says nothing, and then the advice. Halves of surrogate
    pairs, such as bytes of a file name, cannot be sent."""
    try:
        said = str(error)
    except Exception:
        said = ""  # its own `__str__` failed
    ending = f"; {advice}" if advice else ""
    whole = (said or type(error).__name__)[: LONGEST_MESSAGE - len(ending)] + ending
    return whole.encode(errors="replace").decode()


def text_of(error: BaseException) -> str:
    """Return the error with its traceback, without the frames of the runner, so that the user's code comes
    first. Bad parameters have no traceback: their message says it all."""
    if isinstance(error, BadParameters):
        return f"BadParameters: {message_of(error)}\n"
    described = traceback.TracebackException.from_exception(error)
    for each in _all(described):
        _cut(each.stack)
    return "".join(described.format())


def _all(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield the error and those that caused it."""
    waiting, seen = [described], set()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [other for other in (each.__cause__, each.__context__) if other is not None]


def _cut(stack: traceback.StackSummary) -> None:
    """Remove our frames from the head of a stack."""
    ours = 0
    while ours < len(stack) and stack[ours].filename.startswith(OUR_CODE):
        ours += 1
    del stack[:ours]
