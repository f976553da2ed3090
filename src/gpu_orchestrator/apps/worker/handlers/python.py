"""`python`: calls a function that the worker's operator registered, `--function NAME=module:function`.

`{"function": NAME, "arguments": {...}}`; the arguments are passed by name. A client cannot name a module.
"""

from importlib import import_module
from typing import Any

import msgspec

from gpu_orchestrator.api.importing import importing
from gpu_orchestrator.apps.worker.task import BadParameters, Task


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    function: str
    arguments: dict[str, Any] = {}


def handle(task: Task) -> Any:
    parameters = task.parameters(Parameters)
    known = task.options.functions
    if parameters.function not in known:
        names = ", ".join(sorted(known)) or "none"
        raise BadParameters(
            f"function '{parameters.function}' is not registered on this worker; registered: {names}"
        )
    module, _, name = known[parameters.function].partition(":")
    with importing(module):
        function = getattr(import_module(module), name)
    return function(**parameters.arguments)
