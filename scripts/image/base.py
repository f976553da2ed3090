"""The base without a registry: a root folder with libraries, Python and certificates, from Debian packages.

Packages are downloaded and unpacked, never installed. In the image they are listed in
/var/lib/dpkg/status.d, where scanners look for them. The base of the image has no shell and no package
manager; that of the stages before has both.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.image import packages
from scripts.image.packages import NoPackages, run

VERSION = "2"
"""Counted up when packages are unpacked in another way: earlier bases are then made again."""
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
FOLDERS = (
    "dev",
    "etc",
    "proc",
    "root",
    "run",
    "sys",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "usr/local/bin",
    "usr/sbin",
    "var",
)
LINKS = {
    **{name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")},
    "usr/bin/python3": "python{python}",
    "usr/local/bin/python": "/usr/bin/python{python}",
    "usr/local/bin/python3": "/usr/bin/python{python}",
}
NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale", "usr/share/bug")
USERS = {
    "etc/passwd": "root:x:0:0::/root:/usr/sbin/nologin\nnonroot:x:65532:65532::/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class Base:
    folder: Path
    key: str
    """Of the packages and their versions: what is in the folder."""


def get(cache: Path, *, for_building: bool) -> Base:
    """Return the base, made once. A newer version of a package makes a new one."""
    python = packages.python_version()
    versions = packages.chosen(python, for_building=for_building)
    source = "\n".join([VERSION, python, *versions, *map(str, (FOLDERS, LINKS, NOT_NEEDED, USERS))])
    key = hashlib.sha256(source.encode()).hexdigest()
    target = cache / f"base-{key[:16]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache, prefix=".base-") as made:
            _make(Path(made, "root"), Path(made, "packages"), python, versions)
            Path(made, "root").replace(target)
    return Base(target, key)


def _make(root: Path, archives: Path, python: str, versions: Sequence[str]) -> None:
    archives.mkdir()
    for each in FOLDERS:
        (root / each).mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for name, target in LINKS.items():
        (root / name).symlink_to(target.format(python=python))
    packages.download(versions, archives, os.environ.get("USER", "root"))
    for each in sorted(archives.glob("*.deb")):
        _unpack(each, root)
    for name in NOT_NEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name, text in USERS.items():
        (root / name).write_text(text)
    _trust(root)


def _unpack(package: Path, root: Path) -> None:
    # Packages have files in /lib, which is a link to /usr/lib: the link must stay.
    # Modes are those of the package for users who are not root, too.
    unpack = ["tar", "-xp", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as source:
        done = subprocess.run(unpack, stdin=source.stdout, capture_output=True, text=True, check=False)
    if done.returncode or source.returncode:
        raise NoPackages(f"could not unpack {package.name}: {done.stderr.strip()}")
    status = root / "var/lib/dpkg/status.d" / package.name.partition("_")[0]
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(run(["dpkg-deb", "--field", str(package)]))


def _trust(root: Path) -> None:
    """Write the file of certificates that the package's installation would write."""
    each = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    target = root / "etc/ssl/certs/ca-certificates.crt"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(path.read_text() for path in each))
