"""The command line as a user has it: a home of their own, and one real server with simulated GPUs."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.cluster import free_port
from tests.support.workers import compiled

COMMAND = str(Path(sys.executable).with_name("gpu-orchestrator"))
OURS = ("GPU_ORCHESTRATOR", "API_KEY", "KUBE", "DATA_DIR", "NO_COLOR", "COLUMNS")


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
        """Start a command that Ctrl-C may end, also if these tests run in the background of a shell, where
        Ctrl-C is ignored and children inherit that."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen(
            [COMMAND, *words],
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def serving(folder: Path, *words: str, **environ: str) -> Iterator[User]:
    """Run `up` with two simulated GPUs, and yield its user."""
    user = User(folder, **environ)
    data = folder / "data"
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [COMMAND, "up", "--simulate", "2xL4:24GiB", "--quiet", "--port", str(free_port()), *words],
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
    for _ in range(120):
        assert process.poll() is None, log.read_text()
        done = user.run("task", "submit", "echo", "--wait", "-q")
        if done.returncode == 0:
            return
    raise AssertionError(f"not up: {done.stderr}{log.read_text()}")
