"""Rules of the repository: lists that must agree, and files that must not name where they were made."""

import re
import sys
import tomllib

from tests.support.paths import ROOT


def listed(name: str) -> list[str]:
    lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_requirements_match_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert listed("runtime") == project["dependencies"]
    assert listed("manager") == project["optional-dependencies"]["manager"]
    assert listed("webhook") == project["optional-dependencies"]["webhook"]
    assert listed("celery") == project["optional-dependencies"]["celery"]
    assert listed("models") == project["optional-dependencies"]["models"]
    assert listed("agent") == project["optional-dependencies"]["agent"]


def test_locks_have_hashes_and_no_index() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text, lock
        assert not re.search(r"://|--index-url|--find-links", text), lock


def test_no_benchmark_shadows_the_standard_library() -> None:
    """Some run as scripts, and Python searches a script's own folder before the standard library."""
    names = {path.stem for path in (ROOT / "benchmarks").rglob("*.py")}
    assert names & sys.stdlib_module_names == set()
