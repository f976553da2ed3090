"""Stores of other versions than the embedded one: Debian's packages, unpacked into the cache, not installed.

Each comes with the libraries of its own release and runs with that release's loader, so that any Debian can
run all of them. `make accept` gets them; `make test` takes those that are there.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane import toolbox

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIMIT_S = 300


class Unavailable(Exception):
    """The package cannot be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Package:
    """`tools` is the package with the program, from `suites` of Debian, the wanted one first."""

    tools: str
    suites: tuple[str, ...]

    @property
    def program(self) -> str:
        """Return the file of the server: it is one program with several names, and serves as redis-server."""
        return f"{self.tools.removesuffix('-tools')}-check-rdb"


STORES: Mapping[str, Package] = {
    "redis-7.0": Package("redis-tools", ("bookworm",)),
    "valkey-8.0": Package("valkey-tools", ("bookworm-backports", "bookworm")),
    "redis-8.0": Package("redis-tools", ("trixie",)),
    "valkey-8.1": Package("valkey-tools", ("trixie",)),
}
"""What docs/compatibility.md promises, beside the version that is embedded."""


def find(name: str) -> Path | None:
    """Return the server if it was got before."""
    server = _home(name) / "server"
    return server if server.exists() else None


def get(name: str) -> Path:
    """Return the server, after getting its packages if they are not there."""
    home = _home(name)
    with toolbox.only_one(home.parent):
        if not (home / "server").exists():
            for unfinished in home.parent.glob(".getting-*"):
                shutil.rmtree(unfinished)
            _make(STORES[name], home)
    return home / "server"


def get_or_skip(name: str) -> Path:
    """Do the same in a test, which is skipped where the packages cannot be had."""
    try:
        return get(name)
    except Unavailable as error:
        pytest.skip(f"{name} cannot be had: {error}")


def _home(name: str) -> Path:
    return toolbox.default_cache().parent / "stores" / name


def _make(package: Package, home: Path) -> None:
    apt = _Apt.of(package.suites, home.parent)
    try:
        apt.run("apt-get", "update")
        apt.download(sorted(apt.with_libraries(f"{package.tools}/{package.suites[0]}")))
        files = apt.folder / "files"
        for each in apt.folder.glob("*.deb"):
            _run(["dpkg", "-x", each, files], apt.folder)
        _write_server(files, package)
        files.replace(home)
    finally:
        shutil.rmtree(apt.folder)


def _write_server(files: Path, package: Package) -> None:
    """Write a script that starts the server with the libraries beside it, under the name it listens to."""
    loader = next(files.glob("**/ld-linux-*.so.*")).relative_to(files)
    folders = sorted({f'"$here/{each.parent.relative_to(files)}"' for each in files.glob("**/*.so.*")})
    name = package.tools.replace("-tools", "-server")
    words = ["exec", f'"$here/{loader}"', "--argv0", name, "--library-path", ":".join(folders)]
    script = files / "server"
    script.write_text(
        f'#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\n'
        f'{" ".join(words)} "$here/usr/bin/{package.program}" "$@"\n'
    )
    script.chmod(0o755)
    _run([script, "--version"], files)


@dataclass(frozen=True, slots=True)
class _Apt:
    """apt with lists of its own, in a folder that is removed in the end."""

    folder: Path

    @classmethod
    def of(cls, suites: Sequence[str], beside: Path) -> "_Apt":
        if not (KEYRING.exists() and shutil.which("apt-get")):
            raise Unavailable(f"Debian's apt with {KEYRING} is needed")
        folder = Path(tempfile.mkdtemp(prefix=".getting-", dir=beside))
        for each in ("lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True)
        lines = [f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n" for suite in suites]
        (folder / "sources.list").write_text("".join(lines))
        return cls(folder)

    def with_libraries(self, package: str) -> set[str]:
        """Return the package and, of all that it depends on, the libraries."""
        found, seen = {package}, set[str]()
        while todo := found - seen:
            seen |= todo
            found |= {name for each in todo for name in self._libraries(each)}
        return found

    def _libraries(self, package: str) -> Iterator[str]:
        shown = self.run("apt-cache", "show", "--no-all-versions", package)
        for line in re.findall(r"^(?:Pre-)?Depends: (.*)$", shown, re.MULTILINE):
            for choice in line.split(", "):
                if (name := re.split(r"[ (:|]", choice)[0]).startswith("lib"):
                    yield name

    def download(self, packages: Sequence[str]) -> None:
        self.run("apt-get", "download", *packages)

    def run(self, program: str, *words: str) -> str:
        own = {
            "Dir::Etc::sourcelist": f"{self.folder}/sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": f"{self.folder}/lists",
            "Dir::Cache": f"{self.folder}/cache",
            "APT::Sandbox::User": os.environ.get("USER", "root"),
        }
        options = [part for name, value in own.items() for part in ("-o", f"{name}={value}")]
        return _run([program, *options, *words], self.folder)


def _mirror() -> str:
    """Return where this machine gets Debian from."""
    sites = _run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(SITE)"], Path("/")
    ).splitlines()
    for line in sites:
        if line.startswith("Debian Debian "):
            return line.split()[2]
    raise Unavailable("apt has no list of Debian's packages: run `apt-get update` once")


def _run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise Unavailable(f"{command[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
