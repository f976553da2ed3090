"""Ends a cluster whose owner is gone, however it went: run as its own process, with a pipe as standard input.

The owner holds the other end and never writes; when it dies, even by SIGKILL, the kernel closes the pipe.
Then every process with the cluster's mark in its environment is killed and the cluster's folder removed.
A mark, not a list of pids: a child started in the very moment of the owner's death carries it too.
Runs without this package (`python -S -E watchdog.py MARK FOLDER`), so that it starts in milliseconds.
"""

import os
import shutil
import signal
import sys
import time

MARK = "GPU_ORCHESTRATOR_CONTROLPLANE"


def marked(mark: str) -> list[int]:
    """The processes that carry the mark, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if wanted in environ.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:  # it ended meanwhile, or is another user's
                continue
    return found


def end_all(mark: str) -> None:
    deadline = time.monotonic() + 5
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def main() -> None:
    mark, folder = sys.argv[1:]
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # only the owner's end ends it
    sys.stdin.buffer.read()
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
