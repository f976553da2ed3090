"""A program that prints as JSON what a process can know of how it was started."""

import gc
import json
import locale
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    if sys.argv[1] == "wait":
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        signal.pause()
    json.dump(told(), sys.stdout)
    sys.stderr.write("a line without its end")
    sys.exit(int(sys.argv[1]))


def told() -> dict[str, Any]:
    return {
        "arguments": sys.argv[1:],
        "shown": [word for word in Path("/proc/self/cmdline").read_text().split("\0") if word],
        "folder": str(Path.cwd()),
        "search": sys.path,
        "environ": dict(os.environ),
        "from C": sorted(
            subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
        ),
        "parent": os.getppid(),
        "leads a session": os.getsid(0) == os.getpid(),
        "leads a group": os.getpgid(0) == os.getpid(),
        "group": os.getpgid(0) if os.getpgid(0) != os.getpid() else None,
        "stdin": sys.stdin.read(),
        "streams": [str((each.encoding, each.errors, each.line_buffering)) for each in streams()],
        "first streams": streams() == [sys.__stdin__, sys.__stdout__, sys.__stderr__],
        "open files": len(os.listdir("/proc/self/fd")),
        "signals": {str(each): str(signal.getsignal(each)) for each in signal.valid_signals()},
        "blocked": [str(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "umask": os.umask(0),
        "locale": locale.setlocale(locale.LC_ALL),
        "collector": [gc.isenabled(), gc.get_threshold()],
        "threads": [each.name for each in threading.enumerate()],
        "is main": threading.current_thread() is threading.main_thread(),
        "native": threading.get_native_id() == os.getpid(),
    }


def streams() -> list[Any]:
    return [sys.stdin, sys.stdout, sys.stderr]


if __name__ == "__main__":
    main()
