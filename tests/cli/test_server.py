"""Start the manager from the command line: an error is one line, and nothing is left half-started."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from controlplane.cluster import free_port
from tests.support import warm
from tests.support.command_line import COMMAND, in_this_process
from tests.support.nemesis import children_of
from tests.support.scheduler_stage import until
from tests.support.workers import compiled

pytestmark = pytest.mark.real
PATIENCE_S = 90.0


def start(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends by itself: in this process, where a server's imports are loaded. Only for
    one that ends before it configures its logs, because that lasts."""
    return in_this_process(words, folder, surroundings(folder) | environ)


def spawn(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own until it ends by itself."""
    return subprocess.run(
        [COMMAND, *words],
        cwd=folder,
        env=surroundings(folder) | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def surroundings(folder: Path) -> dict[str, str]:
    return {**compiled(), "XDG_CONFIG_HOME": str(folder / "config")}


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode in (1, 2)
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param({"API_PORT": "http"}, "API_PORT=http is not allowed", id="bad setting"),
        pytest.param({"REDIS_URL": "redis://127.0.0.1:1"}, "does not answer", id="store gone"),
        pytest.param({"PLACEMENT_POLICY": "best"}, "unknown strategy 'best'", id="unknown policy"),
        pytest.param({"LOG_FILE": "/dev/null/x"}, "LOG_FILE=/dev/null/x cannot be written: ", id="log file"),
    ],
)
def test_error_is_one_line(tmp_path: Path, environ: dict[str, str], message: str) -> None:
    run = spawn if "REDIS_URL" in environ else start
    done = run(tmp_path, "server", "--data", str(tmp_path / "data"), **{"API_PORT": "0", **environ})
    assert message in only_line(done)
    assert not (tmp_path / "data" / "client.json").exists(), "half started"


@contextmanager
def taken_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


@pytest.mark.parametrize("command", ["server", "up"])
def test_port_in_use_is_reported_before_anything_is_written(tmp_path: Path, command: str) -> None:
    with taken_port() as port:
        line = only_line(start(tmp_path, command, "--port", port, "--data", str(tmp_path / "data")))
    assert (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another port with --port" in line
    )
    assert 'ARGS="--port 9000"' in line
    assert not (tmp_path / "data").exists()


def test_unwritable_data_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = only_line(start(tmp_path, "server", "--port", "0", "--data", str(tmp_path / "file" / "data")))
    assert "cannot be written" in line


@contextmanager
def up(folder: Path, *words: str, data: str = "") -> Iterator[subprocess.Popen[str]]:
    process = warm.Popen(
        [COMMAND, "up", "--simulate", "2", "--data", data or str(folder / "data"), *words],
        cwd=folder,
        env=compiled(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Read its output until a line has `wanted`; kill it if that takes too long."""
    assert process.stdout is not None
    lines: list[str] = []
    late = Timer(PATIENCE_S, process.kill)
    late.start()
    try:
        for line in process.stdout:
            lines.append(line)
            if wanted in line:
                return lines
    finally:
        late.cancel()
    raise AssertionError(f"no {wanted!r} in {''.join(lines)}")


def test_up_shows_running_tasks_ends_cleanly_and_keeps_them(tmp_path: Path) -> None:
    port = str(free_port())
    with up(tmp_path, "--port", port) as first:
        greeting = "".join(lines_until(first, "sample-7 completed"))
        assert f"is up at http://127.0.0.1:{port}" in greeting
        assert "API key (shown once" in greeting
        key = json.loads((tmp_path / "data" / "client.json").read_text())["key"]
        assert f"  {key}\n" in greeting, "on a line of its own"
        second = start(tmp_path, "up", "--data", str(tmp_path / "data"), "--port", "0")
        assert f"is in use: process {first.pid} listens on http://127.0.0.1:{port}" in only_line(second)
        here = {"DATA_DIR": str(tmp_path / "data")}
        done = start(
            tmp_path, "task", "submit", "echo", '{"a": 1}', "--gpus", "0", "--wait", "--json", **here
        )
        assert '"a": 1' in done.stdout, done.stderr
        listed = start(tmp_path, "worker", "list", **here)
        assert "2 ×" in listed.stdout
        below = [first.pid, *all_below(first.pid)]
        first.send_signal(signal.SIGINT)
        assert lines_until(first, "stopped")[-1] == "stopped\n"
        assert first.wait(30) == 0
    until(lambda: not [pid for pid in below if os.path.exists(f"/proc/{pid}")], "all of it has ended", 60)
    with up(tmp_path, "--port", port) as again:
        later = "".join(lines_until(again, "sample-7 completed"))
        assert key not in later
        assert "API key: `gpu-orchestrator key show` prints it" in later
        again.send_signal(signal.SIGINT)
        assert again.wait(30) == 0


def all_below(pid: int) -> list[int]:
    children = children_of(pid)
    return [*children, *(each for child in children for each in all_below(child))]
