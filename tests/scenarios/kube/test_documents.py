"""The commands of the Kubernetes guides, typed into a terminal beside a fresh `make cluster`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.toolbox import Toolbox
from tests.support import documents
from tests.support.paths import ROOT

HERE = "tests/scenarios/kube/test_documents.py"
GUIDES: tuple[tuple[str, ...], ...] = (
    ("docs/operator.md",),
    ("docs/scheduler.md",),
    ("docs/examples.md", "docs/troubleshooting.md", "docs/migrating.md", "docs/development.md"),
)
"""Those of one group are typed one after the other, beside one cluster."""


@pytest.fixture
def terminal(toolbox: Toolbox, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Run the command of `make cluster`; return the environment of a terminal with the lines it prints."""
    command = [sys.executable, "-u", "-m", "controlplane", "up"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        try:
            printed = "".join(iter_until(up, "Ctrl-C ends"))
            found = re.search(r"export KUBECONFIG=(\S+)\n\s+alias kubectl=(\S+)", printed)
            assert found, printed
            folders = (Path(sys.executable).parent, Path(found[2]).parent)
            path = ":".join([*map(str, folders), os.environ["PATH"]])
            yield {**os.environ, "KUBECONFIG": found[1], "HOME": str(tmp_path), "PATH": path}
            up.send_signal(signal.SIGINT)
            up.wait(60)
        finally:
            up.kill()


def iter_until(process: "subprocess.Popen[str]", words: str) -> Iterator[str]:
    for line in process.stdout or ():
        yield line
        if words in line:
            return


@pytest.mark.parametrize("guides", GUIDES, ids=lambda guides: guides[0])
def test_guides_work_as_written(guides: tuple[str, ...], terminal: dict[str, str]) -> None:
    chosen = [block for guide in guides for block in documents.run_by(HERE, guide)]
    assert len(chosen) >= 3
    documents.type_in(chosen, cwd=ROOT, env=terminal)
