"""Tasks of a user's module, for a worker with `--app`: some that end well, and some that do not."""

import asyncio
import sys
import time
from pathlib import Path

from gpu_orchestrator import task
from gpu_orchestrator.client import Cron


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
