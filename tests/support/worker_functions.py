"""Functions that tests register on a worker for `python` tasks."""

import ctypes
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast


def add(a: int, b: int) -> int:
    return a + b


def node(name: str, seconds: float, first: Any = None) -> dict[str, Any]:
    """Take so long, and return the own name with the result of another."""
    time.sleep(seconds)
    return {"name": name, "first": first}


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


def waits_for(path: str) -> None:
    """Wait until the test has made this file."""
    while not Path(path).exists():
        time.sleep(0.02)


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


def says(text: str, seconds: float = 0.0) -> None:
    """Print text as it is, and wait."""
    print(text, end="")  # noqa: T201 - what is tested
    time.sleep(seconds)


def says_all_ways(name: str) -> None:
    """Print in every way there is, always without a newline at the end: Python, bytes, C, a child."""
    print(f"{name}-print", end="")  # noqa: T201 - what is tested
    sys.stdout.buffer.write(f" {name}-bytes".encode())
    os.write(1, f"{name}-write ".encode())
    ctypes.CDLL(None).printf(f"{name}-printf ".encode())
    subprocess.run(["printf", f"{name}-child "], check=True)
    sys.__stdout__.write(f"{name}-original ")  # type: ignore[union-attr]


def leaves_behind(name: str, seconds: float) -> None:
    """Start a thread and processes that print on and on after the task has ended."""

    def print_on() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            print(f"{name}-thread")  # noqa: T201 - what is tested
            os.write(2, f"{name}-thread-raw\n".encode())
            time.sleep(0.001)

    threading.Thread(target=print_on, daemon=True).start()
    loop = f"while sleep 0.01; do echo {name}-process; done"
    subprocess.Popen(["timeout", str(seconds), "sh", "-c", loop])
    subprocess.run(["sh", "-c", f"timeout {seconds} sh -c '{loop}' &"], check=True)
    print(f"{name} leaves")  # noqa: T201 - what is tested


def has_thread(name: str) -> None:
    """Print in a thread of this task's own, after one of an earlier task may have ended."""
    thread = threading.Thread(target=print, args=(f"{name}-own-thread",))
    thread.start()
    thread.join()


def forks(name: str) -> None:
    print(f"{name}-before")  # noqa: T201 - what is tested
    print(f"{name}-unsent", end="")  # noqa: T201 - what is tested
    if not (child := os.fork()):
        print(f"{name}-in-child", flush=True)  # noqa: T201 - what is tested
        os._exit(0)
    os.waitpid(child, 0)


def says_and_crashes() -> None:
    print("about to crash")  # noqa: T201 - what is tested
    ctypes.string_at(0)


def uses_stdout() -> dict[str, Any]:
    """Use what code expects of `sys.stdout`, and leave another file in its place."""
    out: Any = sys.stdout
    out.reconfigure(line_buffering=True)
    out.writelines(["a\n", "b\n"])
    out.buffer.write("€".encode()[:1])
    out.buffer.write("€".encode()[1:] + b"\xff")
    print("\udcff", file=out)
    out.close()
    subprocess.run(["true"], stdout=out, check=True)
    sys.stdout = io.StringIO()
    return {"encoding": out.encoding, "is_tty": out.isatty(), "descriptor": out.fileno()}


class Loud:
    """Prints when it is destroyed, which can happen anywhere."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        print("destroyed " * 1000)  # noqa: T201 - what is tested


def destroys(count: int) -> None:
    """Print while the collector destroys objects that print."""
    gc.set_threshold(10, 2, 2)
    try:
        for _ in range(count):
            Loud()
            print("x" * 1000)  # noqa: T201 - what is tested
    finally:
        gc.set_threshold(700, 10, 10)


def prints_before_it_sends(characters: int) -> None:
    """Print much, as a destructor could, while this thread has the lock and sends nothing yet."""
    with cast("Any", sys.stdout)._sending:
        for _ in range(2):
            sys.stdout.write("x" * characters)


def prints_in_between(lines: int) -> None:
    """Print at each line of the code that sends what is printed, as a destructor could. Not without end: this
    thread would never be done if it sends itself, which it does when the machine is busy."""
    left = 20_000

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if (
            left
            and event == "line"
            and Path(frame.f_code.co_filename).name
            in (
                "output.py",
                "runner.py",
                "threading.py",
            )
        ):
            left -= 1
            print("between")  # noqa: T201 - what is tested
        return trace

    sys.settrace(trace)
    try:
        for _ in range(lines):
            print("x" * 1000)  # noqa: T201 - what is tested
    finally:
        sys.settrace(None)


def floods_forever() -> None:
    while True:
        print("x" * 1000)  # noqa: T201 - what is tested


def fails_in_turn(message: str) -> None:
    try:
        fail("the first error")
    except RuntimeError as error:
        raise Speechless(message) from error


def names_odd_file() -> None:
    """Fail with a name that is not UTF-8; Python writes its odd byte as half of a surrogate pair."""
    fail("cannot read " + os.fsdecode(b"caf\xe9"))


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error has no words")


def is_temporary() -> None:
    from gpu_orchestrator.apps.worker.task import Temporary

    raise Temporary("busy")


def counts(lines: int, pause_s: float) -> None:
    for number in range(lines):
        print(f"line {number}")  # noqa: T201 - what is tested
        time.sleep(pause_s)


def half_a_bar(secret: str) -> None:
    print(f"\r 50% {secret}\r100% {secret}", end="")  # noqa: T201 - what is tested


def shows_bar(steps: int) -> None:
    for number in range(steps + 1):
        print(f"\r{100 * number // steps:3}%|{'#' * number}", end="", flush=True)  # noqa: T201
        time.sleep(0.02)
    print()  # noqa: T201 - what is tested


def says_both(name: str) -> None:
    """Print once through Python and once past it."""
    print(f"{name}-print ")  # noqa: T201 - what is tested
    os.write(1, f"{name}-write\n".encode())


_marks: list[str] = []


def marks(name: str) -> dict[str, Any]:
    """Leave a mark in this process; return its number and the marks that were there."""
    found = [*_marks]
    _marks.append(name)
    return {"pid": os.getpid(), "found": found}


def leaves_fork_chain(name: str, links: int, pause_s: float) -> None:
    """Leave a chain of processes behind: each one is soon replaced by a new one. Those that print are too
    young to be taken for processes of an earlier task."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    for link in range(links):
        if link % 20 == 19:
            os.write(1, f"{name} link {link}\n".encode())
        time.sleep(pause_s)
        if os.fork():
            os._exit(0)
    os._exit(0)


def environment_of(pid: int = 0) -> dict[str, Any]:
    """Return what a task can learn of the process above its keeper: its variables and memory, and its own
    user."""
    agent = pid or int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    found: dict[str, Any] = {"own": dict(os.environ), "uid": os.getuid(), "groups": os.getgroups()}
    for name in ("environ", "mem"):
        try:
            with Path(f"/proc/{agent}/{name}").open("rb") as file:
                found[name] = file.read(1 << 16).decode(errors="replace") if name == "environ" else "readable"
        except OSError as error:
            found[name] = type(error).__name__
    return found


def reads(path: str) -> str:
    return Path(path).read_text()


def yields(count: int, size: int = 0, pause_s: float = 0.0) -> Generator[Any, None, int]:
    """Yield numbers, or texts of this size, and return how many."""
    try:
        for number in range(count):
            yield "x" * size or number
            time.sleep(pause_s)
    finally:
        print(f"closed after {number + 1}")  # noqa: T201 - the test reads it
    return count


async def yields_too(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def yields_and_fails(size: int = 0) -> Generator[Any, None, None]:
    yield 0
    yield "x" * size
    raise RuntimeError("enough")


def appends_until(path: str, gate: str) -> None:
    """Leave a line, and wait until the test has made the gate."""
    with Path(path).open("a") as file:
        file.write("run\n")
    waits_for(gate)
