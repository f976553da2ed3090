"""What Git knows of the tree."""

# ruff: noqa: TID251 - a script, outside the pure packages

import subprocess
from pathlib import Path


def changes(root: Path) -> list[str]:
    """Return the files that are not as committed."""
    return [line[3:] for line in _git(root, "status", "--porcelain").splitlines()]


def commit_of(root: Path, name: str) -> str:
    """Return the commit of a tag or branch; empty if there is none."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", may_fail=True).strip()


def committed_at(root: Path) -> int:
    """Return when the commit was made, in seconds since 1970: the time of everything that is made from it."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def _git(root: Path, *words: str, may_fail: bool = False) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise OSError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout
