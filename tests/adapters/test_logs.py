"""Logs: one JSON object per line, text for people, and a file that is rotated."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gpu_orchestrator.adapters import logs
from gpu_orchestrator.adapters.logs import LogFile


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_line_is_an_object_with_a_constant_sentence() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger().info("claim bound", node="a")
    structlog.get_logger().debug("not logged")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["message"], entry["level"], entry["node"]) == ("claim bound", "info", "a")
    assert entry["time"].endswith("Z")


def test_terminal_gets_text_and_file_gets_json(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "logs" / "manager.log"
    file = LogFile(path)
    logs.configure(1, stream=stream, style="text", file=file)
    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger().exception("it failed", task_id="t")
    file.close()
    assert "it failed" in stream.getvalue()
    assert "ValueError: why" in stream.getvalue()
    (entry,) = lines(path)
    assert (entry["message"], entry["task_id"]) == ("it failed", "t")
    assert "ValueError" in json.dumps(entry["exception"])


@pytest.mark.parametrize("style", ["json", "text"])
def test_traceback_contains_no_variables(style: logs.Format) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, style=style)

    def fails(headers: dict[str, str]) -> None:
        raise ValueError("why")

    try:
        fails({"authorization": f"Bearer gpo_{123}"})
    except ValueError:
        structlog.get_logger().exception("it failed")
    assert "why" in stream.getvalue()
    assert "gpo_123" not in stream.getvalue()


def test_only_file_leaves_the_terminal_alone(tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "manager.log"
    file = LogFile(path)
    logs.configure(stream=stream, file=file, only_file=True)
    structlog.get_logger().info("said")
    file.close()
    assert (stream.getvalue(), lines(path)[0]["message"]) == ("", "said")


def test_file_is_rotated_and_no_line_is_cut_or_lost(tmp_path: Path) -> None:
    path = tmp_path / "manager.log"
    for part in (range(30), range(30, 60)):  # the second is a restarted process
        file = LogFile(path, most_bytes=1000, kept=3)
        for number in part:
            file.write(json.dumps({"number": number, "text": "x" * 60}))
        file.close()
    files = [tmp_path / "manager.log.3", tmp_path / "manager.log.2", tmp_path / "manager.log.1", path]
    kept = [line["number"] for each in files for line in lines(each)]
    assert kept == list(range(60 - len(kept), 60)), "the latest, in order"
    assert len(kept) > 30
    assert all(each.stat().st_size <= 1000 for each in files)
    assert not (tmp_path / "manager.log.4").exists()


def test_unwritable_file_does_not_stop_the_process(tmp_path: Path) -> None:
    path, taken = tmp_path / "m.log", tmp_path / "m.log.1"
    file = LogFile(path, most_bytes=10, kept=1)
    taken.mkdir()  # nothing can be renamed to this
    for _ in range(3):
        file.write("line")
    file.close()
    assert path.read_text() == "line\n" * 3, "rather too large than lost"


@pytest.mark.parametrize(
    ("style", "is_terminal", "is_text"),
    [("auto", True, True), ("auto", False, False), ("json", True, False), ("text", False, True)],
)
def test_text_is_for_terminals_unless_configured(
    style: logs.Format, is_terminal: bool, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    logs.configure(stream=stream, style=style)
    structlog.get_logger().info("joined", epoch=7)
    assert stream.getvalue().startswith("{") is not is_text


@pytest.mark.parametrize(
    ("level", "fields", "line"),
    [
        ("info", {"worker_id": "a", "epoch": 7}, "joined  worker_id=a epoch=7"),
        ("warning", {"why": "it is late"}, "warning: joined  why='it is late'"),
        ("info", {"what": "\x1b[2J"}, "joined  what='\\x1b[2J'"),
    ],
)
def test_message_comes_first_in_text(level: str, fields: dict[str, object], line: str) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, style="text")
    getattr(structlog.get_logger(), level)("joined", **fields)
    date, time, rest = stream.getvalue().rstrip("\n").split(" ", 2)
    assert (len(date), len(time), rest) == (10, 8, line)


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_full_disk_under_stderr_does_not_stop_the_process() -> None:
    logs.configure(stream=Full())
    structlog.get_logger().info("said")


def test_full_disk_under_the_file_loses_whole_lines_only(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, in a process of its own, whose limit ends with it."""
    script = """
import resource, signal, sys
from pathlib import Path
from gpu_orchestrator.adapters.logs import LogFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
file = LogFile(Path(sys.argv[1]))
for number in range(20):
    file.write(f'{{"number": {number}, "text": "{"x" * 20}"}}')
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.write('{"number": 99}')
file.close()
"""
    path = tmp_path / "m.log"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["number"] for line in lines(path)] == [0, 1, 99]


@pytest.mark.parametrize(
    ("least", "verbosity", "shown"),
    [
        ("DEBUG", 0, ["debug", "info", "warning", "error"]),
        ("INFO", 0, ["info", "warning", "error"]),
        ("WARNING", 0, ["warning", "error"]),
        ("ERROR", 0, ["error"]),
        ("ERROR", 1, ["debug", "info", "warning", "error"]),
    ],
)
def test_level_says_how_much_is_logged(least: logs.Level, verbosity: int, shown: list[str]) -> None:
    stream = io.StringIO()
    logs.configure(verbosity, stream=stream, style="json", least=least)
    log = structlog.get_logger()
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)("something happened")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == shown
