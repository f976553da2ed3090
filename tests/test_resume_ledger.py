"""An interrupted run continues where it ended, also with several workers, and succeeds if nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.resume_ledger import state_of

TESTS = """
import os, pathlib

def test_first(): pass

def test_second():
    once = pathlib.Path(__file__).with_name("once")
    if not once.exists():
        once.touch()
        {failure}

def test_third(): pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with three tests, the second of which fails once."""
    (tmp_path / "test_it.py").write_text(TESTS.format(failure="assert False"))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "tests"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    return tmp_path


def run(tree: Path, *words: str) -> tuple[int, str]:
    """Return the exit code of pytest with our ledger, and its last line."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    plugins = ["-p", "xdist.plugin", "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, *plugins, f"--rootdir={tree}", f"--ledger={tree / 'ledger'}", *words],
        cwd=tree,
        env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, (done.stdout.strip().splitlines() or [done.stderr])[-1]


def test_rerun_leaves_out_what_passed_and_succeeds_when_nothing_is_left(tree: Path) -> None:
    code, last = run(tree)
    assert code == 1
    assert "1 failed, 2 passed" in last
    code, last = run(tree)
    assert code == 0
    assert "1 passed, 2 deselected" in last
    assert run(tree)[0] == 0
    assert run(tree, "-k", "no_such_test")[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_replaced_worker_collects_the_same_tests(tree: Path) -> None:
    """The ledger has grown when the replacement starts: the first test passed before the worker was lost."""
    (tree / "test_it.py").write_text(TESTS.format(failure="os._exit(1)"))
    code, last = run(tree, "-n", "1")
    assert code == 1
    assert "1 failed, 2 passed" in last
    code, last = run(tree, "-n", "1")
    assert code == 0
    assert "1 passed" in last
    assert run(tree, "-n", "1")[0] == 0


def test_each_scale_python_and_tree_has_its_own_ledger(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [state_of(tree, "test"), state_of(tree, "accept")]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "3.99")
        states.append(state_of(tree, "test"))
    (tree / "test_it.py").write_text("")
    states.append(state_of(tree, "test"))
    assert len(set(states)) == 4
