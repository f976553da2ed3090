"""The wheel as users get it, in a virtual environment that has nothing of this checkout."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

UV = str(Path(sys.executable).with_name("uv"))
LOCK = ROOT / "requirements/dev.txt"
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


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
