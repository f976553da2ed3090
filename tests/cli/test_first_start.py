"""The first start, killed or interrupted at any moment: the next one gives the user a key that works."""

import json
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_server import PATIENCE_S, lines_until, start, taken_port
from tests.support import warm
from tests.support.command_line import COMMAND
from tests.support.scale import Scale
from tests.support.workers import compiled

pytestmark = pytest.mark.real
FILES = ("lock", "store", "store/valkey.sock", "callback-secret", "client.json", "worker-token", "keys.json")
"""What a first start writes, in this order."""
LONGEST_START_S = 4.0


@contextmanager
def up(folder: Path, log: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    with (log or folder / "up.log").open("a") as output:
        popen = warm.Popen if log is None else subprocess.Popen
        process = popen(
            [COMMAND, "up", "--simulate", "1", "--port", "0", "--data", str(folder / "data")],
            cwd=folder,
            env=compiled(),
            stdout=subprocess.PIPE if log is None else output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def when_it_wrote(name: str) -> Callable[[Path, subprocess.Popen[str]], None]:
    def wait(folder: Path, process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not (folder / "data" / name).exists():
            assert process.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < end, f"no {name}"
            time.sleep(0.0005)

    return wait


def after(seconds: float) -> Callable[[Path, subprocess.Popen[str]], None]:
    return lambda _folder, _process: time.sleep(seconds)


def check_next_start(folder: Path) -> None:
    """The next start shows or has a key, and with it the server answers and its worker works."""
    with up(folder) as again:
        said = "".join(lines_until(again, "sample-1 completed"))
        found = json.loads((folder / "data" / "client.json").read_text())
        assert found["key"], said
        asked = urllib.request.Request(
            f"{found['url']}/cluster/status", headers={"Authorization": f"Bearer {found['key']}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 200
        assert found["key"] in said or "`gpu-orchestrator key show` prints it" in said
        again.send_signal(signal.SIGINT)
        assert again.wait(60) == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "Ctrl-C"])
def test_key_survives_an_end_at_any_moment_of_the_first_start(
    tmp_path: Path, scale: Scale, number: signal.Signals
) -> None:
    rng = random.Random(7)
    by_time = [after(rng.uniform(0.0, LONGEST_START_S)) for _ in range(scale(test=0, accept=20))]
    names = scale(test=("store", "client.json"), accept=FILES)
    for moment, wait in enumerate([*map(when_it_wrote, names), *by_time]):
        folder = tmp_path / str(moment)
        folder.mkdir()
        with up(folder, folder / "up.log") as first:
            wait(folder, first)
            first.send_signal(number)
            code = first.wait(60)
        said = (folder / "up.log").read_text()
        if number == signal.SIGINT and (folder / "data").exists():
            assert "Traceback" not in said
            assert code == 130 or "is up at" in said, said
        check_next_start(folder)


def test_start_after_a_failed_one_and_without_the_client_file_has_a_key(tmp_path: Path) -> None:
    """The client file is missing after a restore: hashes of keys come with the backup, the plain key does
    not. Then another key is made."""
    with taken_port() as port:
        assert start(tmp_path, "up", "--port", port, "--data", str(tmp_path / "data")).returncode == 1
    check_next_start(tmp_path)
    client = tmp_path / "data" / "client.json"
    old = json.loads(client.read_text())["key"]
    client.unlink()
    check_next_start(tmp_path)
    assert json.loads(client.read_text())["key"] != old
