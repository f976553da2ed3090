"""A mount namespace for the parts of a node. The kernel undoes every mount in it with its last process.

Inside, /run, /var/lib and /var/log are folders of the node, because paths in them are built into the kubelet
(device plugins, container logs) and containerd (shim sockets, CNI results). All else is as outside.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import ClusterError

COVERED = {"run": "/run", "lib": "/var/lib", "log": "/var/log"}
# The kubelet sets these for the whole machine unless they read so already: let it read them so.
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


@dataclass(frozen=True, slots=True)
class Namespace:
    """Lasts as long as this process has it open, or another one runs inside."""

    descriptor: int
    snapshotter: str  # what containerd can unpack images with there

    def enter(self, command: Sequence[str | Path]) -> list[str | Path]:
        """Return the command line that runs a command inside."""
        return ["nsenter", f"--mount=/proc/{os.getpid()}/fd/{self.descriptor}", *command]

    def close(self) -> None:
        os.close(self.descriptor)


def make(folder: Path, needed: Sequence[Path]) -> Namespace:
    """Make the namespace of the node in `folder`, whose parts need these other files to be visible."""
    _check_visible([folder, *needed])
    script = _script(folder)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=slave", "sh", "-euc", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as maker:
        snapshotter = next(iter(maker.stdout or ()), "").strip()
        if snapshotter:
            descriptor = os.open(f"/proc/{maker.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        _, errors = maker.communicate()
    if not snapshotter:
        raise ClusterError(f"could not make the node's mounts: {errors.strip()}")
    return Namespace(descriptor, snapshotter)


def _check_visible(paths: Sequence[Path]) -> None:
    for path in paths:
        for covered in COVERED.values():
            if path.is_relative_to(covered):
                raise ClusterError(
                    f"a real node cannot use {path}, because it hides {covered}: set TMPDIR or XDG_CACHE_HOME"
                )


def _script(folder: Path) -> str:
    """Return the shell script that mounts, says which snapshotter works, and waits for the end of its
    input."""
    lines = ["mount --make-rshared /"]  # for the mounts of containers, which the kubelet must see
    for name, path in COVERED.items():
        (folder / name).mkdir()
        lines.append(f"mount --bind '{folder / name}' {path}")
    for name, value in TUNABLES.items():
        copy = folder / "sysctl" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(f"{value}\n")
        lines.append(f"mount --bind '{copy}' /proc/sys/{name}")
    return "\n".join([*lines, _probe(folder / "probe"), "read -r _ || true"])


def _probe(folder: Path) -> str:
    """Return a script that prints `overlayfs`, or `native` where the folder is on a file system without."""
    for name in ("lower", "upper", "work", "merged"):
        (folder / name).mkdir(parents=True)
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    return (
        f"if mount -t overlay overlay -o '{layers}' '{folder}/merged' 2>/dev/null; "
        f"then umount '{folder}/merged'; echo overlayfs; else echo native; fi"
    )
