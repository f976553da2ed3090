"""Remember which tests passed on exactly these sources, so that a long `make accept` can be interrupted
and resumed. One file per state of the tree: any change to a tracked file starts a new one.
"""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.support import side_by_side


class Ledger:
    def __init__(self, folder: Path, root: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{_state_of(root)}.passed"
        self.passed = set(self.file.read_text().splitlines()) if self.file.exists() else set()
        self.calls: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if side_by_side.worker():
            return  # the process that receives the reports of all workers writes them down
        if report.when == "call" and report.passed:
            self.calls.add(report.nodeid)
        elif report.when == "teardown" and report.passed and report.nodeid in self.calls:
            with self.file.open("a") as out:
                out.write(report.nodeid + "\n")


def _state_of(root: Path) -> str:
    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout

    return hashlib.sha256(git("rev-parse", "HEAD") + git("diff", "HEAD")).hexdigest()[:16]
