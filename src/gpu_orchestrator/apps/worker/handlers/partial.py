"""Handlers that are generators: what they yield is sent, what they return is the result."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from gpu_orchestrator.apps.worker.task import Task

Written = Callable[[Any], Any]
"""Checks a value that was yielded, and returns what is sent."""


def result_of(task: Task, returned: Any, written: Written | None = None) -> Any:
    """Return the result of a handler; if it is a generator, after it has run to its end."""
    if isinstance(returned, GeneratorType):
        return _drained(task, returned, written)
    if isinstance(returned, AsyncGeneratorType):
        import asyncio  # few tasks need it, and every runner would load it

        return asyncio.run(_drained_async(task, returned, written))
    return returned


def _drained(task: Task, values: Generator[Any, None, Any], written: Written | None) -> Any:
    with closing(values):  # its `finally` runs here, also if the task was cancelled
        while True:
            try:
                value = next(values)
            except StopIteration as ended:
                return ended.value
            task.send(written(value) if written else value)


async def _drained_async(task: Task, values: AsyncGenerator[Any, None], written: Written | None) -> None:
    async with aclosing(values):
        async for value in values:
            await task.send_async(written(value) if written else value)
