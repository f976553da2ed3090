"""The commands of docs/cli.md, run as they are written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import serving
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
GUIDE = (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"<!-- run by tests/cli/test_guide\.py -->\n```sh\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_marked_blocks_work_as_written(tmp_path: Path) -> None:
    assert len(BLOCKS) == 3
    (tmp_path / "parameters.json").write_text("{}")
    with serving(tmp_path) as user:
        (worker,) = [each["worker_id"] for each in user.json("worker", "list")["workers"]]
        url = json.loads((tmp_path / "data" / "client.json").read_text())["url"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", "set -euo pipefail\n" + "".join(BLOCKS)],
            cwd=tmp_path,
            env={**user.environ, "PATH": path, "WORKER": worker, "URL": url},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"hello": "world"' in done.stdout
    assert '"active_workers"' in done.stdout
