"""A model server that a runner starts and watches: vLLM, llama.cpp, Ollama or another with OpenAI's API.

`server` calls it. The server is a child of the runner, so it sees the runner's devices alone, and ends with
it whatever happens.
"""

import http.client
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from threading import Thread
from typing import IO

import msgspec

from gpu_orchestrator.apps.worker.task import LoadFailed, Model, Temporary

HOST = "127.0.0.1"
FIRST_PAUSE_S, LONGEST_PAUSE_S, CALM_S = 0.5, 60.0, 60.0
"""The pause before a server that crashed is started again, doubled each time, until it has run this long."""
LOOK_S = 0.1
LAST_LINES, READ_S = 20, 0.5


class Options(msgspec.Struct, frozen=True):
    """What the registry says of the server. In `command`, `{port}`, `{path}` and `{name}` are filled in."""

    command: list[str]
    health: str = "/health"
    environment: dict[str, str] = {}
    model: str = ""
    """What the server calls its model; by default the name in the registry."""


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
    def __init__(self, model: Model) -> None:
        self._model, self._options = model, options_of(model)
        self._process: subprocess.Popen[bytes] | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._pause_s = self._began = 0.0
        self._is_ready = False
        self.port = 0

    def start(self, check: Callable[[], None], say: Callable[[str], None]) -> None:
        """Start the server and wait until it is healthy. `check` raises to give up."""
        self._spawn(say)
        self._wait(check)

    def ensure(
        self, check: Callable[[], None], sleep: Callable[[float], None], say: Callable[[str], None]
    ) -> None:
        """Start the server again if it has ended, after a pause that grows with each crash. A task that was
        cancelled meanwhile may have left it before it was healthy."""
        while not self._is_ready or self.exit() is not None:
            if (how := self.exit()) is not None:
                say(f"the server {how}; starting it again in {self._next_pause():g} s")
                sleep(self._pause_s)
                self._spawn(say)
            try:
                self._wait(check)
            except LoadFailed as error:
                if self._pause_s >= LONGEST_PAUSE_S:
                    raise Temporary(str(error)) from error

    def _next_pause(self) -> float:
        """Double the pause, or begin again after a server that ran for long."""
        calm = time.monotonic() - self._began > CALM_S
        self._pause_s = (
            FIRST_PAUSE_S if calm or not self._pause_s else min(2 * self._pause_s, LONGEST_PAUSE_S)
        )
        return self._pause_s

    def _spawn(self, say: Callable[[str], None]) -> None:
        self.port, self._is_ready = _free_port(), False
        known = {"port": str(self.port), "path": self._model.path, "name": self._model.name}
        arguments = [_filled(each, known) for each in self._options.command]
        say(f"starting {arguments[0]} on port {self.port}")
        self._began = time.monotonic()
        self._last.clear()
        try:
            self._process = subprocess.Popen(
                arguments,
                env=os.environ | self._options.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise LoadFailed(f"model {self._model.name!r}: cannot start {arguments[0]!r}: {error}") from error
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._reader = Thread(target=_follow, args=(self._process.stdout, self._last), daemon=True)
        self._reader.start()

    def _wait(self, check: Callable[[], None]) -> None:
        while not self._is_healthy():
            if (how := self.exit()) is not None:
                raise LoadFailed(f"model {self._model.name!r}: its server {how}")
            check()
            time.sleep(LOOK_S)
        self._is_ready = True

    def exit(self) -> str | None:
        """Return how the server ended; None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._reader.join(READ_S)  # its last words; a process that it left may hold the pipe open
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {' | '.join(list(self._last)[-3:])}" if self._last else how

    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process is not None else ()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.port)

    @property
    def served(self) -> str:
        return self._options.model or self._model.name

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", self._options.health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


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
