"""The README's commands work as written: each marked block is run, in order, beside a real `make run`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from tests.cli.test_server import lines_until
from tests.support import documents
from tests.support.paths import ROOT

pytestmark = pytest.mark.real

BLOCKS = [block.code for block in documents.run_by("tests/test_readme.py", "README.md")]


@pytest.fixture
def port() -> int:
    """A port of the test's own: the default one may be taken by a `make run` in another terminal."""
    return free_port()


@pytest.fixture
def home(tmp_path: Path, port: int) -> Iterator[Path]:
    """Run the command of `make run` in its own home folder, and return the folder."""
    target = (ROOT / "Makefile").read_text().split("\nrun:")[1].split("\n")[1]
    assert "$(ARGS)" in target
    words = (
        target.strip().removeprefix("@").replace("$(BIN)/", "").replace("$(ARGS)", f"--port {port}").split()
    )
    command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        try:
            lines_until(up, "completed")
            yield tmp_path
            up.terminate()
            up.wait(30)
        finally:
            up.kill()


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home)}


def test_every_marked_block_works_as_written(home: Path, port: int) -> None:
    assert len(BLOCKS) == 3
    script = "set -euo pipefail\n" + "\necho; echo ==next==\n".join(BLOCKS).replace(":8000/", f":{port}/")
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    by_command, over_http, refused = done.stdout.split("==next==")
    assert "world" in by_command
    answers = [json.loads(line) for line in over_http.replace("}{", "}\n{").splitlines() if line.strip()]
    assert answers[0]["status"]
    assert answers[2]["task_id"]
    error = json.loads(refused)["error"]
    assert error["message"].startswith("no worker can ever take this: 0/1 workers fit"), error
