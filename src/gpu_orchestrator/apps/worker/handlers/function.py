"""A task type that is a function: `@task` in a module that the worker was started with, `--app MODULE`.

The parameters are its arguments by name. What a generator function yields is sent. A client cannot name a
module, only what the operator registered.
"""

import asyncio
from functools import cache
from importlib import import_module

import msgspec

from gpu_orchestrator.api.functions import Definition, Unfit
from gpu_orchestrator.api.importing import importing
from gpu_orchestrator.apps.worker.handlers import partial
from gpu_orchestrator.apps.worker.task import BadParameters, Task


class BadResult(TypeError):
    """The function returned or yielded something else than its annotation says."""


def handle(task: Task) -> msgspec.Raw:
    definition = _load(task.options.tasks[task.type])
    try:
        arguments = definition.read_arguments(task.parameters(msgspec.Raw))
    except Unfit as error:
        raise BadParameters(str(error)) from None
    result = definition.function(**arguments)
    if definition.is_async:
        result = asyncio.run(result)
    try:
        return definition.write_result(partial.result_of(task, result, definition.write_value))
    except Unfit as error:
        raise BadResult(str(error)) from None


@cache
def _load(target: str) -> Definition:
    module, _, name = target.partition(":")
    with importing(module):
        found: Definition = getattr(import_module(module), name)
    return found
