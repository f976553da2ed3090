"""A process that is forked from a warm one knows and does what one that Python starts does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import told_surroundings, warm
from tests.support.workers import compiled

TELL = [sys.executable, "-m", told_surroundings.__name__]


def test_program_is_started_warm() -> None:
    assert warm.command_of(TELL)
    assert warm.command_of([warm.PROGRAM, "server", "--port", "0"]) == "server"
    assert not warm.command_of([warm.PROGRAM, "task", "list"])
    assert not warm.command_of(["unshare", "-m", warm.PROGRAM, "worker"])


@pytest.mark.parametrize("new_session", [False, True])
def test_surroundings_are_the_same(tmp_path: Path, new_session: bool) -> None:
    cold, warmed = (surroundings(popen, tmp_path, new_session) for popen in (subprocess.Popen, warm.Popen))
    assert {name: (cold[name], warmed[name]) for name in cold if cold[name] != warmed[name]} == {}
    assert cold.keys() == warmed.keys()


def surroundings(popen: type[subprocess.Popen[Any]], folder: Path, new_session: bool) -> dict[str, Any]:
    with popen(
        [*TELL, "7", "ein Wort", ""],
        cwd=folder,
        env={**compiled(), "ONLY": "here", "HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    ) as process:
        out, err = process.communicate("what it reads\n", timeout=60)
    assert process.returncode == 7, err
    assert err == "a line without its end"
    told: dict[str, Any] = json.loads(out)
    assert told["parent"] == os.getpid()
    assert told["leads a session"] == new_session
    return told


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it(number: signal.Signals) -> None:
    handled = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` lets all ignore it
    try:
        _signal_ends_it(number)
    finally:
        signal.signal(signal.SIGINT, handled)


def _signal_ends_it(number: signal.Signals) -> None:
    command, quiet = [*TELL, "wait"], subprocess.DEVNULL
    with warm.Popen(command, env=compiled(), stdout=subprocess.PIPE, stderr=quiet) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        try:
            assert process.wait(60) == -number
        finally:
            process.kill()


def test_output_goes_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with file.open("ab") as out:
        process = warm.Popen([*TELL, "0"], env=compiled(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    assert process.wait(60) == 0
    assert '"arguments": ["0"]' in file.read_text()
