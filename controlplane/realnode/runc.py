"""runc, the program that makes containers: the one on PATH, or that of Debian's package, kept in the cache.

It is the one part that is not built here: it needs a C compiler and libseccomp, without which no container
starts. Getting the package takes seconds, needs no root, and installs nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from controlplane import toolbox
from controlplane.errors import ToolboxError


def is_available() -> bool:
    return bool(_on_path() or (shutil.which("apt-get") and shutil.which("dpkg")))


def get(cache: Path) -> Path:
    """Return a runc that runs here."""
    if found := _on_path():
        return found
    target = cache / "runc" / "runc"
    with toolbox.only_one(target.parent):
        if not target.exists():
            _extract(target)
    return target


def _on_path() -> Path | None:
    found = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def _extract(target: Path) -> None:
    print("toolbox: getting Debian's package runc", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        package = _download(folder)
        _run(["dpkg", "-x", package, folder / "files"], folder)
        binary = folder / "files/usr/sbin/runc"
        _run([binary, "--version"], folder)  # fails if libseccomp, which apt itself needs, is not there
        binary.replace(target)


def _download(folder: Path) -> Path:
    as_user = ["-o", f"APT::Sandbox::User={os.environ.get('USER', 'root')}"]
    try:
        _run(["apt-get", *as_user, "download", "runc"], folder)
    except ToolboxError:  # the machine has no list of packages, or an old one: get a list of our own
        for each in ("lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache", *as_user]
        _run(["apt-get", *own, "update"], folder)
        _run(["apt-get", *own, "download", "runc"], folder)
    return next(folder.glob("runc_*.deb"))


def _run(command: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolboxError(
            f"could not get runc: {command[0]}: {done.stderr.strip()}. Install runc, so that it is on PATH"
        )
