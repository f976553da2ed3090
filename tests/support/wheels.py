"""The wheel as users get it, in a virtual environment that has nothing of this checkout."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from controlplane import toolbox
from tests.support.paths import ROOT

UV = str(Path(sys.executable).with_name("uv"))
LOCK, MANAGER = ROOT / "requirements/dev.txt", ROOT / "requirements/manager.txt"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
LIMIT_S = 240


def build(folder: Path) -> Path:
    """Build the wheel of this checkout into the folder and return its path."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of its own."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def program(self) -> str:
        return str(self.bin / "gpu-orchestrator")


def environment(
    folder: Path, wheel: Path, extras: str = "", python: str | Path = sys.executable
) -> Environment:
    """Make an environment with the wheel, what it needs, and nothing else. The versions are those of the
    lock, so that they come from the cache."""
    made = Environment(folder)
    _run(UV, "venv", "-q", "--python", str(python), str(folder))
    what = f"{wheel}[{extras}]" if extras else str(wheel)
    _run(UV, "pip", "install", "-q", "--python", str(made.python), "--constraint", str(LOCK), what)
    return made


def with_pip(folder: Path, wheel: Path, python: str | Path, *, locked: bool) -> Environment:
    """Make an environment of the cluster manager as users do, with venv and pip from an index alone: with the
    locked versions, as docs/operations.md has it, or with the newest ones."""
    made = Environment(folder)
    _run(str(python), "-m", "venv", str(folder))
    pip = (str(made.python), *PIP)
    if locked:
        _run(*pip, "install", "--require-hashes", "-r", str(MANAGER))
        _run(*pip, "install", "--no-deps", str(wheel))
    else:
        _run(*pip, "install", f"{wheel}[manager]")
    _run(*pip, "check")
    return made


def with_pip_and_cache(folder: Path, wheel: Path) -> Environment:
    """Make the same with the locked versions on the Python at hand, from files got once: pip takes seven
    seconds of CPU to read the pages of an index. Nothing is compiled: it is used once."""
    made = Environment(folder)
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    pip = (sys.executable, *PIP, "--python", str(made.python))
    cached = ("--no-compile", "--no-index", "--find-links", str(_locked_wheels()))
    _run(*pip, "install", *cached, "--require-hashes", "-r", str(MANAGER))
    _run(*pip, "install", *cached, "--no-deps", str(wheel))
    _run(*pip, "check")
    return made


def _locked_wheels() -> Path:
    """Return a folder with the wheels of the lock; gets them if they are not there."""
    key = hashlib.sha256(MANAGER.read_bytes()).hexdigest()[:12]
    folder = toolbox.default_cache().parent / "wheels" / f"{sys.implementation.cache_tag}-{key}"
    with toolbox.only_one(folder.parent):
        if not folder.exists():
            for unfinished in folder.parent.glob(".getting-*"):
                shutil.rmtree(unfinished)
            new = Path(tempfile.mkdtemp(prefix=".getting-", dir=folder.parent))
            _run(sys.executable, *PIP, "download", "--require-hashes", "-d", str(new), "-r", str(MANAGER))
            new.rename(folder)
    return folder


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
