"""Which Debian packages the base is made of: what Python needs, by the package lists of this machine."""

# ruff: noqa: TID251 - a script, outside the pure packages

import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

RUN = ("base-files", "ca-certificates", "libgcc-s1", "libstdc++6", "tzdata", "zlib1g")
"""Besides Python: libraries that wheels take for granted, certificates, time zones."""
BUILD = ("dash", "coreutils")
LEFT_OUT = frozenset(
    {
        *("debconf", "openssl", "dpkg", "debianutils", "perl-base", "awk", "mawk", "mime-support", "tar"),
        # Modules of Python that no component imports: nis, dbm, readline, curses.
        *(
            "libdb5.3",
            "libdb5.3t64",
            "libnsl2",
            "libtirpc3",
            "libtirpc3t64",
            "libreadline8",
            "libreadline8t64",
        ),
        *("libncursesw6", "libtinfo6", "libgdbm6t64", "netbase"),
    }
)
EDGE = re.compile(r"^(?P<other> \|| {2})(?:Pre)?Depends: (?P<name>\S+)$")
LISTED = (
    "--no-recommends",
    "--no-suggests",
    "--no-conflicts",
    "--no-breaks",
    "--no-replaces",
    "--no-enhances",
)


class NoPackages(Exception):
    """The text says what was tried, and what to do."""


@cache
def python_version() -> str:
    """Return the Python of this machine's Debian, as 3.11."""
    for name in _edges(run(["apt-cache", "depends", *LISTED, "python3"])).get("python3", ()):
        if found := re.fullmatch(r"python(3\.\d+)", name):
            return found[1]
    raise NoPackages("no package python3 is known here; run: apt-get update")


@cache
def chosen(python: str, *, for_building: bool) -> list[str]:
    """Return `name=version` of every package, by name."""
    roots = [*RUN, f"python{python}"]
    if for_building:
        roots += [*BUILD, f"python{python}-venv"]
    graph = _edges(run(["apt-cache", "depends", "--recurse", *LISTED, *roots]))
    return sorted(_versions(sorted(reachable(graph, roots))))


def reachable(graph: Mapping[str, Sequence[str]], roots: Sequence[str]) -> Collection[str]:
    found: dict[str, None] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found and name not in LEFT_OUT and not name.startswith("<"):
            found[name] = None
            waiting += graph.get(name, ())
    return found


def _edges(text: str) -> dict[str, list[str]]:
    """Return what each package depends on; of alternatives the first."""
    graph: dict[str, list[str]] = {}
    name, is_next = "", False
    for line in text.splitlines():
        if line and not line.startswith((" ", "|")):
            name, is_next = line, False
            graph[name] = []
        elif found := EDGE.match(line):
            if not is_next:
                graph[name].append(found["name"])
            is_next = found["other"] == " |"
    return graph


def _versions(names: Sequence[str]) -> Iterator[str]:
    name = ""
    for line in run(["apt-cache", "show", "--no-all-versions", *names]).splitlines():
        if line.startswith("Package: "):
            name = line.removeprefix("Package: ")
        elif line.startswith("Version: "):
            yield f"{name}={line.removeprefix('Version: ')}"


def download(versions: Sequence[str], folder: Path, user: str) -> None:
    run(["apt-get", "-q", "-o", f"APT::Sandbox::User={user}", "download", *versions], cwd=folder)


def run(command: Sequence[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoPackages(
            f"{command[0]} was not found: without docker or podman the base is made of Debian packages"
        ) from None
    if done.returncode:
        what = " ".join(command[:2])
        raise NoPackages(f"{what}: {done.stderr.strip()}; if a package is not found: apt-get update")
    return done.stdout
