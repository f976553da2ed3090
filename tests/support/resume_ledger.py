"""Remember which tests passed on exactly these sources, so that a long `make accept` can be interrupted
and resumed. One file per Python, scale and state of the tree: any change to a tracked file starts a new one.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PASSED, LEFT_OUT = "ledger_passed", "ledger_left_out"
"""What the controller of `pytest -n` sends to its workers, and what they send back."""


class Ledger:
    """Leaves out the tests that have passed, and writes down those that pass now.

    With `pytest -n`, the controller reads the file once and sends it to all workers. A worker that replaces a
    lost one must collect the same tests as the others, although the file has grown meanwhile.
    """

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{state_of(config.rootpath, config.getoption('--scale'))}.passed"
        self.calls: set[str] = set()
        self.left_out = 0
        sent: dict[str, Any] | None = getattr(config, "workerinput", None)
        self.is_worker = sent is not None
        if sent is not None:
            self.passed = set(sent[PASSED])
        else:
            self.passed = set(self.file.read_text().splitlines()) if self.file.exists() else set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[PASSED] = sorted(self.passed)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        if done:
            self.left_out = len(done)
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_worker:
            return  # the controller receives the reports of all workers and writes them down
        if report.when == "call" and report.passed:
            self.calls.add(report.nodeid)
        elif report.when == "teardown" and report.passed and report.nodeid in self.calls:
            with self.file.open("a") as out:
                out.write(report.nodeid + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.left_out += getattr(node, "workeroutput", {}).get(LEFT_OUT, 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Succeed if no test ran because all of them had passed before."""
        if self.is_worker:
            session.config.workeroutput[LEFT_OUT] = self.left_out  # type: ignore[attr-defined]
        elif self.left_out and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK


def state_of(root: Path, scale: str) -> str:
    """Return a name for what the tests run on."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout

    played = f"{sys.version} {scale}\n".encode()
    return hashlib.sha256(played + git("rev-parse", "HEAD") + git("diff", "HEAD")).hexdigest()[:16]
