"""Tasks of a user's module, for a worker with `--app`: some that end well, and some that do not."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

from gpu_orchestrator import task
from gpu_orchestrator.client import Cron, File


class Odd(Exception):
    """An error of the user's own."""


@task(gpus=0)
def fails(message: str) -> None:
    sys.stdout.write("about to fail\n")
    raise Odd(message)


@task(gpus=0)
def lies(text: str) -> int:
    return text  # type: ignore[return-value]


@task(gpus=0, name="waits.until")
async def waits(path: str, text: str = "done") -> str:
    """Wait until there is such a file."""
    sys.stdout.write("waits\n")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - it is another process that makes it
        await asyncio.sleep(0.01)
    return text


@task(gpus=0, timeout=60)
def large(characters: int) -> str:
    return "x" * characters


@task(gpus=0)
def total(numbers: list[int | None]) -> int:
    return sum(number or 0 for number in numbers)


@task(gpus=0)
def twice(number: int) -> int:
    return 2 * number


@task(gpus=0, schedule=Cron("0 3 * * *", timezone="Europe/Berlin", overlap="skip"))
def nightly(words: str = "good night") -> str:
    return words


@task(gpu_memory="1GB")
def on_gpu(number: int) -> tuple[int, float]:
    return number * number, time.time()


@task(gpus=0, timeout=120)
def counts(to: int, size: int = 0, pause_s: float = 0.0) -> Generator[int | str, None, str]:
    """Yield numbers, or texts that begin with them and have this size."""
    for number in range(to):
        yield f"{number} ".ljust(size, "x") if size else number
        if pause_s:
            time.sleep(pause_s)
    return f"counted to {to}"


@task(gpus=0)
async def counts_too(to: int, fail_at: int = -1) -> AsyncIterator[int]:
    for number in range(to):
        if number == fail_at:
            raise Odd(f"not {number}")
        yield number


@task(gpus=0)
def yields_lies() -> Iterator[int]:
    yield 1
    yield "text"  # type: ignore[misc]


@task(gpus=0, retries=1)
def counts_twice(folder: str) -> Iterator[int]:
    """Yield 0 and 1, then die with the runner; at the next attempt yield more."""
    marker = Path(folder, "was-here")
    if marker.exists():
        yield from range(10, 15)
        return
    yield from range(2)
    while not Path(folder, "seen").exists():
        time.sleep(0.01)
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)


@task(gpus=0)
def copies(data: File, more: list[File]) -> tuple[str, File]:
    """Return where the first file is, and leave a file with all that is in them."""
    text = "".join(Path(each.path).read_text() for each in (data, *more))
    here = Path(tempfile.mkdtemp()) / "all of it.txt"
    here.write_text(text)
    return data.path, File.of(here)


@task(gpus=0)
def leaves(kind: str) -> File:
    """Leave what is not a file of the task's own."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "out"
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    return File.of(path)
