"""`make` makes the virtual environment again when another Python is asked for, and only then."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.scripts.test_pythons import interpreter
from tests.support.paths import ROOT


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment of Python 3.11, newer than all it is made from."""
    made = tmp_path / "venv"
    interpreter(made / "bin", "3.11").rename(made / "bin" / "python")
    (made / "ready").touch()
    return made


def would_do(venv: Path, *variables: str) -> str:
    """What `make` would run."""
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", "-n", f"{venv}/ready", f"VENV={venv}", *variables]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_python_makes_it_again_and_says_so(venv: Path, tmp_path: Path) -> None:
    other = interpreter(tmp_path, "3.12")
    plan = would_do(venv, f"PYTHON={other}")
    assert f"making {venv} with $({other} -V) in place of $({venv}/bin/python -V" in plan
    assert f"{other} -m venv --clear {venv}" in plan


def test_the_same_python_keeps_it(venv: Path, tmp_path: Path) -> None:
    assert "venv --clear" not in would_do(venv, f"PYTHON={interpreter(tmp_path, '3.11')}")


def test_without_a_wish_it_is_kept(venv: Path) -> None:
    (venv / "bin" / "python").write_text("#!/bin/sh\necho 3.99\n")
    assert "venv --clear" not in would_do(venv)


def test_a_broken_one_is_made_again(venv: Path, tmp_path: Path) -> None:
    (venv / "bin" / "python").unlink()
    other = interpreter(tmp_path, "3.12")
    assert f"{other} -m venv --clear {venv}" in would_do(venv, f"PYTHON={other}")
