"""End a cluster whose owner is gone for any reason. Runs as its own process, with a pipe as standard input.

The owner holds the other end and never writes; when it dies, even by SIGKILL, the kernel closes the pipe.
Then the watchdog kills every process with the cluster's mark in its environment and removes the cluster's
folder. It uses a mark, not a list of pids: a child started in the moment of the owner's death has it too.
A real node (realnode/) leaves more: containers, whose environment is not ours but whose cgroup is named after
the mark, that cgroup, and a network bridge. Its mounts end with the last process of its mount namespace.
It runs without this package (`python -S -E watchdog.py MARK FOLDER`), so that it starts in milliseconds.
"""

import fcntl
import glob
import os
import shutil
import signal
import socket
import struct
import sys
import time

MARK = "GPU_ORCHESTRATOR_CONTROLPLANE"
CGROUPS = "/sys/fs/cgroup"
TIMEOUT_S = 10.0

# From linux/sockios.h.
GET_FLAGS, SET_FLAGS, DELETE_BRIDGE = 0x8913, 0x8914, 0x89A1
IS_UP = 1


def marked(mark: str) -> list[int]:
    """Return the processes that carry the mark, except this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if wanted in environ.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:  # it has ended, or belongs to another user
                continue
    return found


def cgroup_name(mark: str) -> str:
    return f"gpu-orchestrator-{mark[:12]}"


def cgroups(mark: str) -> list[str]:
    """Return the cgroup folders of the mark: one in each hierarchy of version 1, or the one of version 2."""
    name = cgroup_name(mark)
    return glob.glob(f"{CGROUPS}/{name}") + glob.glob(f"{CGROUPS}/*/{name}")


def contained(mark: str) -> list[int]:
    """Return the processes in the mark's cgroups: those of the containers."""
    found: set[int] = set()
    for root in cgroups(mark):
        for folder, _, _ in os.walk(root):
            try:
                with open(f"{folder}/cgroup.procs") as pids:
                    found.update(int(pid) for pid in pids.read().split())
            except OSError:  # it has been removed, or holds threads only
                continue
    return sorted(found)


def bridge_name(mark: str) -> str:
    return f"gpo{mark[:12]}"  # the kernel allows 15 characters


def has_bridge(mark: str) -> bool:
    return os.path.exists(f"/sys/class/net/{bridge_name(mark)}")


def end_all(mark: str) -> None:
    """Kill all that has the mark, then remove the cgroups and the bridge."""
    deadline = time.monotonic() + TIMEOUT_S
    while (pids := [*marked(mark), *contained(mark)]) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    while cgroups(mark) and time.monotonic() < deadline:
        _remove_cgroups(mark)
        time.sleep(0.02)
    if has_bridge(mark):
        _remove_bridge(bridge_name(mark))


def _remove_cgroups(mark: str) -> None:
    for root in cgroups(mark):
        for folder, _, _ in os.walk(root, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:  # busy until the kernel has taken its dead processes out
                continue


def _remove_bridge(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            flags = struct.unpack_from(
                "16sh", fcntl.ioctl(sock, GET_FLAGS, struct.pack("16s16x", name.encode()))
            )
            down = struct.pack("16sh14x", name.encode(), flags[1] & ~IS_UP)
            fcntl.ioctl(sock, SET_FLAGS, down)  # the kernel removes no bridge that is up
            fcntl.ioctl(sock, DELETE_BRIDGE, name.encode() + b"\0")
        except OSError:  # another process has just removed it
            return


def main() -> None:
    mark, folder = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # only the owner's end may end it
    sys.stdin.buffer.read()
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
