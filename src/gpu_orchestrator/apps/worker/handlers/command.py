"""`command`: runs a program, `{"arguments": ["nvidia-smi", "-L"]}`; off until the operator allows it.

It takes a list of arguments and never starts a shell. Its output goes into the task's log; the last lines
are the result.
"""

import os
import signal
import subprocess
from codecs import getincrementaldecoder
from collections import deque
from threading import Thread
from typing import IO, Annotated, Any

import msgspec

from gpu_orchestrator.apps.worker.task import Cancelled, Task
from gpu_orchestrator.apps.worker.transcript import Lines

LAST_LINES = 100
AT_ONCE = 32 << 10
POLL_S = 0.1
GRACE_S = 2.0


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    arguments: Annotated[list[str], msgspec.Meta(min_length=1)]
    environment: dict[str, str] = {}
    folder: str | None = None


class CommandFailed(Exception):
    pass


def handle(task: Task) -> dict[str, Any]:
    parameters = task.parameters(Parameters)
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = None
    try:
        process = _start(parameters)
        reader = Thread(target=_follow, args=(process.stdout, task, last), daemon=True)
        reader.start()
        code = _wait(process, task)
        reader.join()
    except BaseException:  # a limit or a cancellation can interrupt any line
        if process is not None:
            _stop(process)
        raise
    if code:
        raise CommandFailed(
            f"{parameters.arguments[0]} ended with {_describe_exit(code)}: {'; '.join(list(last)[-3:])}"
        )
    return {"exit_code": code, "output": list(last)}


def _start(parameters: Parameters) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        parameters.arguments,
        env=os.environ | parameters.environment,
        cwd=parameters.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _follow(output: IO[bytes], task: Task, last: deque[str]) -> None:
    """Pass output on as it comes, also parts of lines: programs show their progress that way."""
    lines, decoder = Lines(), getincrementaldecoder("utf-8")("replace")
    with output:
        while data := os.read(output.fileno(), AT_ONCE):
            text = decoder.decode(data)
            task.write(text)
            last.extend(_rows(lines.feed(text)))
    last.extend(_rows(lines.end()))


def _rows(lines: str) -> list[str]:
    return lines.removesuffix("\n").split("\n") if lines else []


def _wait(process: "subprocess.Popen[bytes]", task: Task) -> int:
    while True:
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if task.is_cancelled:
                raise Cancelled from None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
