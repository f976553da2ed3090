"""`make test-pythons` finds every interpreter, and reports correctly when some are missing or fail."""

from pathlib import Path

import pytest

from scripts.pythons import Outcome, exit_code, find, report

HERE = Path("/usr/bin/python")


def interpreter(folder: Path, version: str, *, answers: str = "", rc: int = 0) -> Path:
    """Write a fake interpreter that prints one line for any command."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python{version}"
    path.write_text(f"#!/bin/sh\necho '{answers or version}'\nexit {rc}\n")
    path.chmod(0o755)
    return path


def test_path_comes_before_pyenv(tmp_path: Path) -> None:
    first = interpreter(tmp_path / "bin", "3.12")
    interpreter(tmp_path / ".pyenv/versions/3.12.1/bin", "3.12")
    assert find("3.12", {"PATH": f"/nowhere:{tmp_path / 'bin'}", "HOME": str(tmp_path)}) == first


@pytest.mark.parametrize(
    ("answers", "rc"),
    [pytest.param("", 127, id="shim of a disabled version"), pytest.param("3.11", 0, id="another Python")],
)
def test_interpreter_that_does_not_work_is_skipped(tmp_path: Path, answers: str, rc: int) -> None:
    interpreter(tmp_path / "shims", "3.12", answers=answers, rc=rc)
    environment = {"PATH": str(tmp_path / "shims"), "PYENV_ROOT": str(tmp_path / "pyenv")}
    assert find("3.12", environment) is None
    good = interpreter(tmp_path / "pyenv/versions/3.12.1/bin", "3.12")
    assert find("3.12", environment) == good


def test_newest_pyenv_version_comes_first(tmp_path: Path) -> None:
    for patch in (2, 10, 9):
        interpreter(tmp_path / f"versions/3.13.{patch}/bin", "3.13")
    interpreter(tmp_path / "versions/3.1.99/bin", "3.13")
    found = find("3.13", {"PYENV_ROOT": str(tmp_path)})
    assert found == tmp_path / "versions/3.13.10/bin/python3.13"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        pytest.param([Outcome("3.11", HERE, True), Outcome("3.12", HERE, True)], 0, id="all pass"),
        pytest.param([Outcome("3.11", HERE, True), Outcome("3.12", HERE, False)], 1, id="one fails"),
        pytest.param([Outcome("3.11", HERE, True), Outcome("3.12")], 0, id="one is missing"),
        pytest.param([Outcome("3.11", HERE, True), Outcome("3.14", HERE, False)], 0, id="not promised"),
        pytest.param([Outcome("3.11"), Outcome("3.14", HERE, True)], 1, id="none of the promised ran"),
    ],
)
def test_exit_code(outcomes: list[Outcome], code: int) -> None:
    assert exit_code(outcomes) == code


def test_report_names_results_and_how_to_install_the_rest() -> None:
    text = report([Outcome("3.11", HERE, True, 61.2), Outcome("3.12", HERE, False, 3.0), Outcome("3.13")])
    assert "3.11  passed in 61 s, /usr/bin/python" in text
    assert "3.12  FAILED in 3 s" in text
    assert "3.13  not found" in text
    assert "pyenv install 3.13" in text
    assert "Not run" not in report([Outcome("3.11", HERE, True)])
