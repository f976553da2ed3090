"""The command line as a user has it: a home of their own, and one real server with simulated GPUs.

A process of its own takes a quarter of a second of CPU, most of it for imports. So a command runs in this
process (`User.run` and what uses it), unless the process is what a test is about, with its signals, locale
and pipes (`User.spawn` and `User.start`).
"""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.cli import main
from tests.support import warm
from tests.support.workers import compiled

COMMAND = warm.PROGRAM
OURS = ("GPU_ORCHESTRATOR", "API_KEY", "KUBE", "DATA_DIR", "NO_COLOR", "COLUMNS")
PATIENCE_S = 120.0


class User:
    """Runs commands in one folder, which is also the home."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in compiled().items() if not name.startswith(OURS)}
        self.environ = {
            **kept,
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "DATA_DIR": str(folder / "data"),
            **environ,
        }

    def run(self, *words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process."""
        return in_this_process(words, self.folder, {**self.environ, **environ}, stdin)

    def spawn(self, *words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own."""
        return subprocess.run(
            [COMMAND, *words],
            cwd=self.folder,
            env={**self.environ, **environ},
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=120,
        )

    def says(self, *words: str, stdin: str = "", **environ: str) -> str:
        """Return what a command prints that works."""
        done = self.run(*words, stdin=stdin, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str, **environ: str) -> Any:
        return json.loads(self.says(*words, "--json", **environ))

    def refused(self, *words: str, code: int = 1, stdin: str = "", **environ: str) -> str:
        """Return the one line of a command that fails."""
        done = self.run(*words, stdin=stdin, **environ)
        assert done.returncode == code, done.stdout + done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("gpu-orchestrator: ")
        return line

    def start(self, *words: str, **environ: str) -> "subprocess.Popen[str]":
        """Start a command that Ctrl-C may end."""
        return warm.Popen(
            [COMMAND, *words],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def in_this_process(
    words: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    stdin: str = "",
    *,
    encoding: str = "utf-8",
    stdout: BinaryIO | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the program as if in a process of its own: with its own streams, variables and folder. Its output
    is in the result, unless it is written to `stdout`."""
    read = io.BytesIO(stdin.encode(errors="surrogateescape"))
    written, told = io.BytesIO(), io.BytesIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    collected = gc.get_threshold()
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in set(os.environ) - set(environ):
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", [COMMAND, *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(read, encoding, "surrogateescape"))
        patch.setattr(sys, "stdout", io.TextIOWrapper(stdout or written, encoding))
        patch.setattr(sys, "stderr", io.TextIOWrapper(told, encoding, "backslashreplace"))
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code or 0
        except Exception:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.set_threshold(*collected)
        texts = [each.getvalue().decode(encoding, "surrogateescape") for each in (written, told)]
    return subprocess.CompletedProcess([COMMAND, *words], code, *texts)


@contextmanager
def serving(folder: Path, *words: str, program: str = COMMAND, **environ: str) -> Iterator[User]:
    """Run `up` of this or another program with two simulated GPUs, and yield its user."""
    user = User(folder, **environ)
    data = folder / "data"
    with (folder / "up.log").open("wb") as log:
        process: subprocess.Popen[bytes] = warm.Popen(
            [program, "up", "--simulate", "2xL4:24GiB", "--quiet", "--port", str(free_port()), *words],
            cwd=folder,
            env={**user.environ, "LOG_FORMAT": "json"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _until_up(process, folder / "up.log", user)
        yield user
        process.terminate()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert (data / "store").exists()


def _until_up(process: "subprocess.Popen[bytes]", log: Path, user: User) -> None:
    """Wait until a task that needs a GPU has run: then the worker has joined."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        done = user.run("task", "submit", "echo", "--wait", "-q")
        if done.returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"not up: {done.stderr}{log.read_text()}")
