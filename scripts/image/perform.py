"""Perform one step in a root folder.

A command runs in mount and process namespaces of its own, with the folder as its root: what it writes, it
writes there, and what it starts ends with it. It has the network, as a step of docker has; the locks say
what may come from there.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import glob
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scripts.image import layer
from scripts.image.dockerfile import Copy, Run
from scripts.image.plan import IGNORED

FROM_HOST = ("/etc/resolv.conf", "/etc/hosts")
PASSED_ON = (
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "pip_index_url",
    "pip_extra_index_url",
    "pip_trusted_host",
    "pip_cert",
)
"""How this machine reaches package indexes: variables that docker passes on, too, and pip's own."""
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
SBIN = "/usr/sbin:/sbin"
"""Where chroot is, and what the PATH of Debian's users does not have."""
INSIDE = """\
set -eu
mount --make-rprivate /
for each in dev proc tmp; do mkdir -p "$ROOT/$each"; done
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmp "$ROOT/tmp"
mkdir "$ROOT/tmp/pip"
mount --bind "$PIP" "$ROOT/tmp/pip"
for each in $FROM_HOST; do
  [ ! -e "$each" ] || { touch "$ROOT$each"; mount --bind "$each" "$ROOT$each"; }
done
exec chroot "$ROOT" env -i "$@"
"""


class StepFailed(Exception):
    """The text has the step, and the end of what it printed."""


def run(step: Run, root: Path, pip_cache: Path) -> None:
    """Run the command as root of this folder; without being root here, in a user namespace."""
    pip_cache.mkdir(parents=True, exist_ok=True)
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if os.geteuid():
        command += ["--map-root-user"]
    path = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
    env = {
        **os.environ,
        "PATH": path,
        "ROOT": str(root),
        "PIP": str(pip_cache),
        "FROM_HOST": " ".join(_from_host()),
    }
    given = [f"{name}={value}" for name, value in _environment(step).items()]
    words = [*given, "/bin/sh", "-c", f"cd '{step.folder}' && {step.command}"]
    done = subprocess.run(
        [*command, "sh", "-c", INSIDE, "sh", *words], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise StepFailed(f"RUN {step.command}\nended with {done.returncode}:\n{last}")


def _environment(step: Run) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name.lower() in PASSED_ON}
    if "PIP_CERT" in passed:
        passed["PIP_CERT"] = TRUSTED
    # The order of sets and the times in archives would otherwise differ from run to run.
    same = {"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": str(layer.EPOCH_S)}
    quiet = {
        "PIP_CACHE_DIR": "/tmp/pip",  # noqa: S108 - of the root folder, where nobody else is
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    return {**dict(step.env), "HOME": "/root", **passed, **same, **quiet}


def _from_host() -> Iterator[str]:
    yield from FROM_HOST
    if "PIP_CERT" in os.environ:
        yield TRUSTED


def copy(step: Copy, source: Path, root: Path) -> None:
    """Copy into the root as docker does: of a folder its content, of several sources each into the target."""
    target = root / step.target.strip("/")
    found = [path for each in step.sources for path in _matching(source, each)]
    into = step.target.endswith("/") or len(found) > 1
    for path in found:
        to = target / path.name if path.is_file() and (into or target.is_dir()) else target
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            ignore = shutil.ignore_patterns(*IGNORED, "*.egg-info") if not step.stage else None
            shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, ignore=ignore)
        else:
            shutil.copy2(path, to, follow_symlinks=False)


def _matching(source: Path, pattern: str) -> list[Path]:
    found = sorted(glob.glob(str(source / pattern.strip("/"))))
    if not found:
        raise StepFailed(f"COPY {pattern}: there is nothing of this name in {source}")
    return [Path(each) for each in found]
