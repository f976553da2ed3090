"""Functions that tests register on a worker for `python` tasks."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def environment(name: str) -> str | None:
    return os.environ.get(name)


def fail(message: str) -> None:
    raise RuntimeError(message)


def not_json() -> object:
    return object()


def large(size: int) -> str:
    return "x" * size


def prints() -> None:
    print("from print")  # noqa: T201 - what is tested


def crash() -> None:
    """Cause a segmentation fault."""
    ctypes.string_at(0)


def exits() -> None:
    os._exit(7)


def deaf(seconds: float) -> str:
    """Ignore cancellation, soft limits and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(Exception):
            time.sleep(0.05)
    return "done"


def cleans_up(seconds: float) -> str:
    """Clean up and return when the soft limit is reached."""
    from gpu_orchestrator.apps.worker.task import SoftLimitReached

    try:
        print("begun")  # noqa: T201 - the test waits for this line
        time.sleep(seconds)
    except SoftLimitReached:
        return "cleaned up"
    return "slept"


def family(seconds: float) -> list[int]:
    """Start children and grandchildren, one of them in a session of its own, then wait."""
    nested = [sys.executable, "-c", f"import subprocess; subprocess.run(['sleep', '{seconds}'])"]
    children = [
        subprocess.Popen(["sleep", str(seconds)]),
        subprocess.Popen(["setsid", "sleep", str(seconds)]),
        subprocess.Popen(nested, start_new_session=True),
    ]
    print("family is there")  # noqa: T201 - the test waits for this line
    time.sleep(seconds)
    return [child.pid for child in children]


def modules() -> Any:
    return sorted(sys.modules)


def pid_after(seconds: float) -> int:
    """Return which process ran the task."""
    time.sleep(seconds)
    return os.getpid()


def floods(megabytes: int, how: str) -> None:
    """Print numbered lines of a hundred bytes until there are enough of them, then fail."""
    count = megabytes * 10_000
    if how == "print":
        for number in range(count):
            print(f"{number:09} {'x' * 89}")  # noqa: T201 - what is tested
    elif how == "write":
        for start in range(0, count, 500):
            lines = "".join(f"{number:09} {'x' * 89}\n" for number in range(start, start + 500))
            os.write(1, lines.encode())
    else:
        program = f"for number in range({count}): print(f'{{number:09}} ' + 'x' * 89)"
        subprocess.run([sys.executable, "-c", program], check=True)
    raise RuntimeError(f"enough after {count} lines")
