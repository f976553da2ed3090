"""The commands of the cluster manager's guides, typed as they are written beside a running `up`."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

import pytest

from tests.support import documents
from tests.support.command_line import serving
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
HERE = "tests/cli/test_guide.py"
GUIDES = {
    "docs/cli.md": 9,
    "docs/examples.md": 3,
    "docs/operations.md": 5,
    "docs/troubleshooting.md": 4,
    "docs/worker.md": 2,
}
"""The guides, and how many blocks of each are run."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A terminal on the machine where `up` runs."""
    with serving(tmp_path_factory.mktemp("guides")) as user:
        (worker,) = [each["worker_id"] for each in user.json("worker", "list")["workers"]]
        client = json.loads((user.folder / "data" / "client.json").read_text())
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield {**user.environ, "PATH": path, "WORKER": worker, "URL": client["url"], "KEY": client["key"]}


@pytest.mark.parametrize("guide", GUIDES)
def test_guide_works_as_written(guide: str, terminal: dict[str, str], tmp_path: Path) -> None:
    chosen = documents.run_by(HERE, guide)
    assert len(chosen) == GUIDES[guide]
    (tmp_path / "parameters.json").write_text("{}")
    copyfile(ROOT / "examples" / "machines" / "two-pairs.json", tmp_path / "devices.json")
    needs_key = guide not in ("docs/cli.md", "docs/worker.md")
    env = {**terminal, "API_KEY": terminal["KEY"]} if needs_key else terminal
    printed = "".join(documents.type_in(chosen, cwd=tmp_path, env=env))
    if guide == "docs/cli.md":
        assert '"hello": "world"' in printed
        assert '"active_workers"' in printed
        assert "GPU0  X     NV4   SYS   SYS   0       200   0" in printed
        assert "gpu-orchestrator login" in printed, "the receiver of a key learns what to do with it"
