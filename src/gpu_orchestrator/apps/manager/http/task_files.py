"""Check the files that the parameters of tasks name, at submission. `submission.py` calls it."""

from collections.abc import Sequence

from gpu_orchestrator.api import files
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.manager import Manager

MOST_OF_REQUEST = 1000
"""Files that all tasks of one request may name."""


async def check(manager: Manager, requests: Sequence[task_schema.TaskRequest], owner: str) -> None:
    """Raise an error for a task that names a file which is not its owner's; keep the others longer."""
    named = {
        name: number
        for number, each in enumerate(requests)
        for name in files.named_in(bytes(each.parameters))
    }
    if len(named) > MOST_OF_REQUEST:
        raise errors.Unprocessable(
            f"the tasks of this request name {len(named)} files, and one request may name {MOST_OF_REQUEST}; "
            "send them in several"
        )
    if missing := await manager.files.use(list(named), owner):
        raise errors.Unprocessable(
            f"parameters name the file {missing}: {owner} has no such file, or no longer; upload it",
            task=named[missing],
        )
