"""One start of a model server: vLLM, llama.cpp, Ollama or another with OpenAI's API.

`server_watch` starts one after the other. The server is a child of the runner, so it sees the runner's
devices alone, and ends with it whatever happens. It leads a process group of its own, which ends as a whole.
"""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.worker.task import LoadFailed, Model

HOST = "127.0.0.1"
LOOK_S, LOOK_IDLE_S = 0.1, 0.25
ANSWER_S = 5.0
"""How long a server may take to say that it is healthy."""
LAST_LINES, READ_S = 20, 0.5

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Options(msgspec.Struct, frozen=True):
    """What the registry says of the server. In `command`, `{port}`, `{path}` and `{name}` are filled in. A
    server that was not healthy for `unhealthy_seconds` is ended and started again, and so is one that takes
    longer than `start_seconds` to start again. At its end it has `drain_seconds` for what it works on, and
    then `stop_seconds` from SIGTERM to SIGKILL."""

    command: list[str]
    health: str = "/health"
    environment: dict[str, str] = {}
    model: str = ""
    """What the server calls its model; by default the name in the registry."""
    check_seconds: Seconds = 5.0
    unhealthy_seconds: Seconds = 30.0
    start_seconds: Seconds = 600.0
    drain_seconds: Seconds = 30.0
    stop_seconds: Seconds = 10.0


def options_of(model: Model) -> Options:
    try:
        found = msgspec.json.decode(model.raw_options, type=Options)
    except msgspec.ValidationError as error:
        raise LoadFailed(f"model {model.name!r}: options: {error}") from error
    if not found.command:
        raise LoadFailed(
            f"model {model.name!r}: options.command is empty; give the program and its arguments"
        )
    return found


class ServerProcess:
    """A server that was started: asked whether it is healthy, and ended."""

    def __init__(self, model: Model, options: Options) -> None:
        self.port, self._health = _free_port(), options.health
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._ending = Lock()
        known = {"port": str(self.port), "path": model.path, "name": model.name}
        arguments = [_filled(each, known) for each in options.command]
        self.program = arguments[0]
        try:
            self._process = subprocess.Popen(
                arguments,
                env=os.environ | options.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            raise LoadFailed(f"model {model.name!r}: cannot start {self.program!r}: {error}") from error
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._reader = Thread(target=_follow, args=(self._process.stdout, self._last), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit(self) -> str | None:
        """Return how the server ended; None while it runs. What it started ends with it."""
        with self._ending:
            if self._process.returncode is None and not _has_ended(self.pid):
                return None
            if self._process.returncode is None:
                self._signal(signal.SIGKILL)  # before it is reaped: until then its number is nobody else's
                self._process.wait()
        self._reader.join(READ_S)  # its last words; a process that it left may hold the pipe open
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {' | '.join(list(self._last)[-3:])}" if self._last else how

    def end(self, grace_s: float) -> str:
        """Ask the server to end; kill it and all of its group if it has not within the grace. Return how it
        ended."""
        until = time.monotonic() + grace_s
        self._tell(signal.SIGTERM)
        while (how := self.exit()) is None:
            if time.monotonic() >= until:
                self._tell(signal.SIGKILL)
            time.sleep(LOOK_S / 2)
        return how

    def is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", self._health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _tell(self, number: signal.Signals) -> None:
        with self._ending:
            if self._process.returncode is None:
                self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _follow(output: IO[bytes], last: deque[str]) -> None:
    """Keep the last lines that the server prints, for the message if it ends."""
    with output:
        for line in iter(lambda: output.readline(4096), b""):
            last.append(line.decode(errors="replace").strip())


def _filled(argument: str, known: dict[str, str]) -> str:
    """Return an argument with what is known in place of `{port}` and the like; other braces stay."""
    for name, value in known.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
