"""Run `make check test-fast` on every Python that the README promises: `make test-pythons`.

It finds interpreters on PATH and among those of pyenv, gives each a virtual environment of its own
(`.venv-3.12`), runs one after the other, and reports missing ones. It needs only the standard library.

`pythons.py python3.12` prints where that Python is; nothing if it is not found.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

from __future__ import annotations  # so that an older python3 can start it too

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROMISED = ("3.11", "3.12", "3.13")
TRIED = ("3.14",)
"""Run if found; a failure is reported but does not fail the target."""

CHECK = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


class Outcome(NamedTuple):
    """`python` is None if none was found; `is_passed` then means nothing."""

    version: str
    python: Path | None = None
    is_passed: bool = False
    took_s: float = 0.0

    def __str__(self) -> str:
        if self.python is None:
            return f"  {self.version}  not found"
        verdict = "passed" if self.is_passed else "FAILED"
        return f"  {self.version}  {verdict} in {self.took_s:.0f} s, {self.python}"


def main(*names: str) -> int:
    if names:
        for found in filter(None, (find(name.removeprefix("python"), os.environ) for name in names)):
            print(found)
        return 0
    outcomes = [run(version, find(version, os.environ)) for version in (*PROMISED, *TRIED)]
    print(report(outcomes))
    return exit_code(outcomes)


def find(version: str, environment: Mapping[str, str]) -> Path | None:
    """Return the first `python3.X` that runs and can make virtual environments. A pyenv shim may do
    neither."""
    return next((path for path in _candidates(version, environment) if _is_usable(path, version)), None)


def run(version: str, python: Path | None) -> Outcome:
    if python is None:
        return Outcome(version)
    print(f"\n== Python {version}: {python}", flush=True)
    began = time.monotonic()
    make = [os.environ.get("MAKE", "make"), "check", "test-fast"]
    done = subprocess.run([*make, f"PYTHON={python}", f"VENV=.venv-{version}"])
    return Outcome(version, python, done.returncode == 0, time.monotonic() - began)


def report(outcomes: Iterable[Outcome]) -> str:
    outcomes = list(outcomes)
    lines = ["", "make check test-fast:", *map(str, outcomes)]
    missing = [outcome.version for outcome in outcomes if outcome.python is None]
    if missing:
        first = missing[0]
        lines += [
            f"Not run: {', '.join(missing)}. Looked for python3.X with venv on PATH and in pyenv's versions.",
            f"Get one with `pyenv install {first}`, or from your system (Debian: python{first}-venv).",
        ]
    return "\n".join(lines)


def exit_code(outcomes: Iterable[Outcome]) -> int:
    found = [outcome for outcome in outcomes if outcome.python is not None and outcome.version in PROMISED]
    return 0 if found and all(outcome.is_passed for outcome in found) else 1


def _candidates(version: str, environment: Mapping[str, str]) -> Iterator[Path]:
    name = f"python{version}"
    for folder in environment.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder) / name
    root = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/"), ".pyenv"))
    for home in sorted((root / "versions").glob(f"{version}.*"), key=_numbers, reverse=True):
        yield home / "bin" / name


def _numbers(home: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", home.name)]


def _is_usable(path: Path, version: str) -> bool:
    try:
        done = subprocess.run([path, "-c", CHECK], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
