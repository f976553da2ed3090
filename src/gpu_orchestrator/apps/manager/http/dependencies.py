"""Read and check what a submission says about other tasks: `depends_on`, and references to their results.

`submission.py` calls it. A task can only depend on tasks that were submitted before it, so there are no
cycles. It sees none but those of its own owner: others' are refused with the words for unknown ones.
"""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.tasks import Dependency
from gpu_orchestrator.api import references
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.manager import Manager

MOST_OF_REQUEST = 10_000
"""Dependencies of all tasks of one request."""
MOST_DEPENDENTS = 10_000
"""Tasks that may wait for one task."""
LINK_BYTES = 300
"""About what one dependency of a task takes in the store."""
READ_AT_ONCE = 1000


def needs_of(request: task_schema.TaskRequest) -> str:
    """Return what the store writes of a task's dependencies, as in `NewTask.needs`."""
    return " ".join([request.on_failure, *_ids(request)]) if request.depends_on else ""


def takes_results(request: task_schema.TaskRequest, number: int = 0) -> bool:
    """Return whether the parameters refer to results. Without `depends_on` they never do: they may be any
    JSON."""
    if not request.depends_on:
        if request.on_failure != "cancel":
            raise errors.Unprocessable(
                "on_failure is given without depends_on; name the tasks that this one depends on", task=number
            )
        return False
    taken = references.of(bytes(request.parameters))
    if other := next((each for each in taken if each not in request.depends_on), None):
        raise errors.Unprocessable(
            f"parameters refer to the result of task {other}, which is not in depends_on; add it there",
            task=number,
        )
    return bool(taken)


async def check(manager: Manager, requests: Sequence[task_schema.TaskRequest], owner: str) -> None:
    """Raise an error for the first task whose dependencies cannot be."""
    asked = [(number, name) for number, each in enumerate(requests) for name in _ids(each)]
    if not asked:
        return
    if len(asked) > MOST_OF_REQUEST:
        raise errors.Unprocessable(
            f"the tasks of this request have {len(asked)} dependencies, and one request may have "
            f"{MOST_OF_REQUEST}; send them in several"
        )
    names = list(dict.fromkeys(name for _, name in asked))
    found: dict[str, Dependency] = {}
    for start in range(0, len(names), READ_AT_ONCE):
        part = names[start : start + READ_AT_ONCE]
        found |= dict(zip(part, await manager.store.tasks.dependencies(part), strict=True))
    for number, name in asked:
        known = found[name]
        if not known.state or known.owner != owner:
            raise errors.Unprocessable(
                f"depends_on: there is no task {name} of yours, or no longer; give whole ids of tasks that "
                f"{owner} has submitted",
                task=number,
            )
        if known.waiting >= MOST_DEPENDENTS:
            raise errors.Conflict(
                f"depends_on: {known.waiting} tasks wait for task {name} already, the most that may; "
                "let one task wait for it and others for that one",
                task=number,
            )


def _ids(request: task_schema.TaskRequest) -> list[str]:
    return list(dict.fromkeys(request.depends_on))
