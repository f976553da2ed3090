"""End a cluster whose owner is gone for any reason. Runs as its own process, with a pipe as standard input.

The owner holds the other end and never writes; when it dies, even by SIGKILL, the kernel closes the pipe.
Then the watchdog kills every process with the cluster's mark in its environment and removes the cluster's
folder. It uses a mark, not a list of pids: a child started in the moment of the owner's death has it too.
It runs without this package (`python -S -E watchdog.py MARK FOLDER`), so that it starts in milliseconds.
"""

import os
import shutil
import signal
import sys
import time

MARK = "GPU_ORCHESTRATOR_CONTROLPLANE"


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
        signal.signal(signum, signal.SIG_IGN)  # only the owner's end may end it
    sys.stdin.buffer.read()
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
