"""`up` checks before it starts, says on its screen what is wrong, and ends as it is asked to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.cli import local
from tests.cli.test_server import lines_until, only_line, start, up
from tests.support.nemesis import children_of, name_of
from tests.support.workers import compiled

pytestmark = pytest.mark.real
DESCRIBE = "write a count such as 4, or 4xL4:24GiB,2xH200:141GiB"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["--simulate", "abc"], f"--simulate: 'abc' does not describe GPUs; {DESCRIBE}", id="abc"
        ),
        pytest.param(["--simulate", "4xL4"], f"'4xL4' does not describe GPUs; {DESCRIBE}", id="no size"),
        pytest.param(["--simulate", "0"], f"'0' does not describe GPUs; {DESCRIBE}", id="none"),
        pytest.param(["--max-concurrent", "0"], "give a whole number from 1 to 10000", id="nothing at once"),
        pytest.param(["--port", "99999"], "--port 99999 is not allowed: give a whole number", id="port"),
        pytest.param(["--host", "a..b"], "choose an address of this machine with --host", id="host"),
    ],
)
def test_bad_option_is_one_line_and_writes_nothing(tmp_path: Path, words: list[str], message: str) -> None:
    data = tmp_path / "data"
    done = start(tmp_path, "up", "--data", str(data), *words, API_PORT="0")
    assert message in only_line(done)
    assert done.returncode == (1 if "--host" in words else 2), "an address that is not there may come"
    assert not data.exists()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("up", "--data", "data"), id="up"),
        pytest.param(("server", "--data", "data"), id="server"),
        pytest.param(("worker", "--token", "x", "--server", "http://127.0.0.1:9"), id="worker"),
    ],
)
def test_misspelt_setting_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / ".env").write_text("API_PROT=9000\nEDITOR=vi\n")
    done = start(tmp_path, *words)
    assert done.returncode == 2
    assert "API_PROT is not a setting; did you mean API_PORT?" in done.stderr.splitlines()[0]
    assert "EDITOR" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("RELOAD=1\nDEBUG=1\n")
    done = start(tmp_path, "up", "--simulate", "x", "--data", str(tmp_path / "data"))
    said = done.stderr.splitlines()[0]
    assert said == "gpu-orchestrator: RELOAD, DEBUG in .env have no effect in this version"


def test_gpus_are_counted_before_anything_starts() -> None:
    assert local.check(Settings(), local.Asked(simulate="2xL4:24GiB,1")) == 3
    assert local.check(Settings(), local.Asked()) == len(find().devices())
    with pytest.raises(BadSettings, match="does not describe GPUs"):
        local.check(Settings(), local.Asked(simulate="-1"))


class Odd(NamedTuple):
    """An `up` on all addresses, with a relative data directory, beside files named as modules of Python."""

    folder: Path
    process: subprocess.Popen[str]
    said: str


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    folder = tmp_path_factory.mktemp("odd")
    for name in ("random", "queue", "msgspec", "aiohttp"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    with up(folder, "--port", "0", "--host", "0.0.0.0", data="here") as running:
        yield Odd(folder, running, "".join(lines_until(running, "sample-8 completed")))


def test_data_directory_may_be_relative(odd: Odd) -> None:
    assert (odd.folder / "here" / "client.json").exists()


def test_modules_in_the_current_folder_replace_none_of_python(odd: Odd) -> None:
    assert "sample-8 completed" in odd.said
    assert "the wrong module" not in odd.said + (odd.folder / "here" / "worker.log").read_text()


def test_hints_reach_this_server_and_open_ports_are_warned_of(odd: Odd, tmp_path: Path) -> None:
    assert "keys travel in clear text" in odd.said
    hints = [line.strip() for line in odd.said.splitlines() if line.startswith("  ")]
    script = "\n".join(
        [*(each for each in hints if each.startswith("export")), "gpu-orchestrator worker list"]
    )
    assert "gpu-orchestrator worker list" in hints
    assert any("$(gpu-orchestrator key show)" in each for each in hints)
    home = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", script], env=compiled() | home, capture_output=True, text=True, timeout=60
    )
    assert "2 × Simulated" in done.stdout, done.stderr


def worker_of(pid: int) -> int:
    (found,) = [child for child in children_of(pid) if " worker " in name_of(child)]
    return found


def test_end_of_the_worker_is_told_with_what_happens_next(odd: Odd) -> None:
    os.kill(worker_of(odd.process.pid), signal.SIGKILL)
    told = lines_until(odd.process, "the worker ended")[-1]
    assert "it starts again in 1 s" in told
    assert str(odd.folder / "here" / "worker.log") in told
    lines_until(odd.process, "all is well again")
    os.kill(worker_of(odd.process.pid), signal.SIGKILL)
    assert "it starts again in 2 s" in lines_until(odd.process, "the worker ended")[-1], "it backs off"


def test_worker_that_cannot_start_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpus").write_text("a file where the simulated GPUs should be")
    with up(tmp_path, "--port", "0") as running:
        told = lines_until(running, "the worker cannot start")[-1]
        assert "gpus" in told
        assert "press Ctrl-C, correct it and start again" in told
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
    assert (tmp_path / "data" / "worker.log").read_text().count("gpu-orchestrator worker: ") == 1


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_interrupt_says_what_it_waits_for_and_twice_ends_at_once(tmp_path: Path, again: bool) -> None:
    with up(tmp_path, "--port", "0", "--quiet") as running:
        lines_until(running, "Ctrl-C stops everything")
        here = {"DATA_DIR": str(tmp_path / "data")}
        seconds = 60 if again else 4
        start(tmp_path, "task", "submit", "sleep", f'{{"seconds": {seconds}}}', "--gpus", "0", **here)
        listed = ""
        while "running" not in listed:
            listed = start(tmp_path, "task", "list", **here).stdout
        running.send_signal(signal.SIGINT)
        assert "waiting for 1 task (Ctrl-C again to stop it)" in lines_until(running, "waiting for")[-1]
        began = time.monotonic()
        if again:
            running.send_signal(signal.SIGINT)
        ended = lines_until(running, "stopped")
        assert running.wait(30) == 0
        assert ended[-1] == "stopped\n"
        assert not again or time.monotonic() - began < 45, "a task of a minute was waited for"
