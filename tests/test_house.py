"""The house keeps its own rules: lists that must agree, and files that must not name where they were made."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_runtime_requirements_are_the_packages_own() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = [
        line
        for line in (ROOT / "requirements/runtime.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert listed == declared


def test_locks_are_hashed_and_name_no_index() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text, lock
        assert not re.search(r"://|--index-url|--find-links", text), lock
