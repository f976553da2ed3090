"""The commands of docs/quickstart.md, run as they are written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from tests.cli.test_server import lines_until, up
from tests.support.paths import ROOT
from tests.support.workers import compiled

pytestmark = pytest.mark.real
GUIDE = ROOT / "docs" / "quickstart.md"


def blocks() -> list[str]:
    here = r"<!-- run by tests/cli/test_quickstart\.py -->\n```sh\n(.*?)```"
    return re.findall(here, GUIDE.read_text(), flags=re.DOTALL)


def answers(output: str) -> list[dict[str, object]]:
    """Return the JSON objects in the output."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := output.find("{", at)) >= 0:
        value, at = decoder.raw_decode(output, at)
        found.append(value)
    return found


def test_every_command_works_as_written(tmp_path: Path) -> None:
    start, settings, *rest = blocks()
    assert start == "gpu-orchestrator up --simulate 4\n"
    port = str(free_port())
    with up(tmp_path, "--port", port) as server:
        lines_until(server, "sample-1 completed")
        env = {
            **compiled(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATA_DIR": str(tmp_path / "data"),
        }
        written = settings.replace("8000", port)
        script = "set -euo pipefail\n" + written + "".join(rest)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    first, waited, batch, status, workers, health, refused, explained, *_ = answers(done.stdout)
    assert first["status"] == "queued"
    assert waited["status"] == "completed"
    assert batch["total"] == 2
    assert status["active_workers"] == 1
    assert workers["online"] == 1
    assert health["status"] == "healthy"
    assert refused["error"]["code"] == "conflict"  # type: ignore[index]
    assert explained["status"] == "completed"
