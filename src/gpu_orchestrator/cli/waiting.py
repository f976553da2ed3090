"""Wait for a task and show how it goes. Used by `task submit --wait`, `task wait` and `task watch ID`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_orchestrator.cli import client, output, task_rows
from gpu_orchestrator.cli.plain import lines
from gpu_orchestrator.cli.tables import shortened
from gpu_orchestrator.cli.where import Place

PAUSES_S = (0.5, 0.5, 1.0, 1.0, 2.0)
LONG_PAUSE_S = 5.0
"""A key that somebody was given may send a thousand requests an hour; this stays below."""
SILENT_PAUSE_S = 600.0
"""How long one request waits if nobody looks; the most that the server allows."""
RESTART_S = 60.0
"""How long the server may be away in between."""
QUIET_S = 2.0
"""A worker may be about to join: only after this time say that the task waits for one."""
AGAIN_S = 1.0

Shown = Callable[[dict[str, Any]], None]


class Line:
    """One line at the bottom of the terminal that is written again and again."""

    def __init__(self) -> None:
        self._page = output.page(sys.stderr)
        self._is_there = False

    def show(self, words: str) -> None:
        if self._page.width is not None:
            sys.stderr.write(f"\r\x1b[K{shortened(lines(words).replace(chr(10), ' '), self._page.width - 1)}")
            sys.stderr.flush()
            self._is_there = True

    def clear(self) -> None:
        if self._is_there:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_there = False


@dataclass(slots=True)
class Patience:
    """`deadline` is a time of `time.monotonic`, or None to wait until the end."""

    deadline: float | None = None

    def left_s(self) -> float:
        return float("inf") if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)


def until_ended(
    place: Place, task_id: str, *, timeout_s: float | None = None, shown: Shown, pause_s: float = LONG_PAUSE_S
) -> Any:
    """Return the task when it has ended, or as it is after `timeout_s`; call `shown` until then: often at
    first, then every `pause_s`."""
    patience = Patience(None if timeout_s is None else time.monotonic() + timeout_s)
    number = 0
    task = _ask(place, task_id, 0.0, patience)
    while task["status"] not in task_rows.FINAL and patience.left_s() > 0:
        shown(task)
        next_s = PAUSES_S[number] if number < len(PAUSES_S) else pause_s
        number += 1
        task = _ask(place, task_id, min(next_s, patience.left_s()), patience)
    return task


@contextmanager
def interruptible(task_id: str) -> Iterator[None]:
    """After Ctrl-C, say that the task goes on and how to cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"task {task_id} goes on; cancel it with: {output.PROGRAM} task cancel {task_id}")
        sys.exit(130)


def on_terminal(place: Place, task_id: str, *, timeout_s: float | None = None) -> Any:
    """Wait, with a line that shows state and progress if somebody looks. If the task can wait forever, say
    so once, also in a pipe."""
    line, began, said = Line(), time.monotonic(), ""

    def shown(task: dict[str, Any]) -> None:
        nonlocal said
        why = task_rows.stuck(task)
        if why not in ("", said) and time.monotonic() - began >= QUIET_S:
            line.clear()
            output.note(f"task {task['task_id']} waits: {why}")
            said = why
        line.show(task_rows.line(task, datetime.now(UTC)))

    try:
        pause_s = LONG_PAUSE_S if output.is_terminal(sys.stderr) else SILENT_PAUSE_S
        return until_ended(place, task_id, timeout_s=timeout_s, shown=shown, pause_s=pause_s)
    finally:
        line.clear()


def _ask(place: Place, task_id: str, wait_s: float, patience: Patience) -> Any:
    """Ask for the task, and again while the server is away for a moment or asks us to slow down."""
    path = f"/tasks/{client.part(task_id)}/wait"
    give_up = time.monotonic() + RESTART_S
    while True:
        try:
            return client.request(
                place, "GET", path, query={"timeout": f"{wait_s:.3f}"}, answer_s=wait_s + client.ANSWER_S
            )
        except client.Refused as error:
            if not error.retry_after_s:
                raise
            time.sleep(min(error.retry_after_s, patience.left_s()))
        except client.Unreachable:
            if wait_s == 0 or time.monotonic() > give_up:
                raise
            time.sleep(min(AGAIN_S, patience.left_s()))
