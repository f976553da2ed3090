"""Which pod a process belongs to, from its cgroup path.

The kubelet puts every container into a cgroup below `kubepods` and one that names the pod's UID:

    0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c_….slice/cri-containerd-….scope
    0::/kubepods/burstable/pod1b2c-…/4f5e…                                          driver cgroupfs
    4:memory:/kubepods/besteffort/pod1b2c-…/4f5e…                                   cgroup v1, one line each

A reader in a cgroup namespace of its own sees paths of others from where it is: `/../../kubepods-…`. Of
several pods in a path the first counts: what comes after it, the pod's own processes can have made.
"""

import os
import re
from pathlib import Path

LONGEST = 64 * 1024
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_BELOW = re.compile(rf"(?:^|/)kubepods(?:\.slice)?/(?:[^/]+/)?[^/:]*?pod({_UID})(?:\.slice)?(?:[/:]|$)")
_SLICE = re.compile(rf"(?:^|[/-])kubepods(?:-besteffort|-burstable)?-pod({_UID})\.slice(?:[/:]|$)")
_SEEN_FROM_BESIDE = re.compile(rf"^/(?:\.\./)+(?:burstable/|besteffort/)?pod({_UID})(?:/|$)")


def pod_of(text: str) -> str:
    """Return the UID of the pod that the text of /proc/<pid>/cgroup names; empty if it names none. The UID of
    a static pod is the hash that the kubelet made of its file, without dashes."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        found = [match for form in (_SLICE, _BELOW, _SEEN_FROM_BESIDE) if (match := form.search(path))]
        if found:
            return min(found, key=lambda match: match.start(1))[1].replace("_", "-")
    return ""


def read(pid: int, root: Path = Path("/")) -> str:
    """Return the UID of a process's pod; empty if it is in none, or has ended."""
    try:
        with (root / "proc" / str(pid) / "cgroup").open(errors="replace") as file:
            return pod_of(file.read(LONGEST))
    except OSError:
        return ""


def pods(root: Path = Path("/")) -> set[str]:
    """Return the UIDs of all pods that have a process on this machine."""
    try:
        pids = [int(name) for name in os.listdir(root / "proc") if name.isdecimal()]
    except OSError:
        return set()
    return {uid for pid in pids if (uid := read(pid, root))}
