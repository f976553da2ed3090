"""Cancel and retry tasks, one or many. The routes call it; many are changed in parts, so that other clients
of the store need not wait.

Nothing that happens to one task of many fails the others: each has an outcome of its own.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from gpu_orchestrator.adapters.store.records import Limit, NoRoom
from gpu_orchestrator.adapters.store.tasks import CancelResult
from gpu_orchestrator.api import task, task_gangs
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import submission
from gpu_orchestrator.apps.manager.http.task_filter import of_selection
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.tasks.reading import ID_LENGTH

CANCELLABLE = ("scheduled", "queued", "assigned", "running")
RETRYABLE = ("failed", "dead", "cancelled")
MOST_CHANGED = 10_000
MOST_SHORT_IDS = 20
"""Each shortened id costs a search through all tasks."""
AT_ONCE = 100

Change = Callable[[Manager, Sequence[str], Key], Awaitable[list[task_schema.TaskOutcome]]]


class Chosen(NamedTuple):
    """The ids of the tasks to change, outcomes of ids that name none, and how many tasks are left for a next
    call. `complete` is False if not all tasks were searched."""

    names: list[str]
    failed: list[task_schema.TaskOutcome]
    remaining: int = 0
    complete: bool = True


async def choose(
    manager: Manager, wanted: task_schema.TaskSelection, key: Key, states: Sequence[str]
) -> Chosen:
    """Choose the tasks to change. `states` are those in which a task can be changed."""
    filters = (wanted.status, wanted.task_type, wanted.labels, wanted.worker_id, wanted.owner, wanted.all)
    if wanted.task_ids:
        if any(filters):
            raise errors.Unprocessable("give either task_ids or a filter, not both")
        return Chosen(*await _named(manager, wanted.task_ids, key))
    if not any(filters):
        raise errors.Unprocessable(
            "no task is chosen; give task_ids, a filter (status, task_type, labels, worker_id, owner), "
            "or all: true for every task"
        )
    found = await manager.store.tasks.choose(of_selection(key, wanted, states), most=MOST_CHANGED)
    # Of a worker, the list lacks only tasks that ended long ago.
    is_complete = bool(found.complete or wanted.worker_id)
    return Chosen(list(found.ids), [], found.total - len(found.ids), is_complete)


async def cancel(manager: Manager, names: Sequence[str], key: Key) -> list[task_schema.TaskOutcome]:
    done: list[task_schema.TaskOutcome] = []
    for part in _parts(names):
        answers = await manager.store.tasks.cancel(part, owner=key.sees)
        done += [cancelled(manager, name, before) for name, before in zip(part, answers, strict=True)]
    return _by_gang(done, "cancelled")


def _by_gang(outcomes: list[task_schema.TaskOutcome], to: str) -> list[task_schema.TaskOutcome]:
    """Return the outcomes with those of members right whose gang was changed with another one, named
    before."""
    gangs = {task_gangs.split(each.task_id)[0] for each in outcomes if not each.error}
    return [
        _outcome(each.task_id, to)
        if each.error and each.status == to and task_gangs.split(each.task_id)[0] in gangs
        else each
        for each in outcomes
    ]


async def retry(manager: Manager, names: Sequence[str], key: Key) -> list[task_schema.TaskOutcome]:
    done: list[task_schema.TaskOutcome] = []
    full: dict[Limit, str] = {}
    for part in _parts(names):
        for name, answer in zip(part, await submission.retry(manager, part, key), strict=True):
            if isinstance(answer, errors.Forbidden):
                done.append(_outcome(name, "", answer.message))
            elif isinstance(answer, NoRoom):
                if answer.limit not in full:
                    full[answer.limit] = submission.no_room(manager, answer, 1, key).message
                done.append(_outcome(name, "", full[answer.limit]))
            elif answer.state in RETRYABLE:
                done.append(_outcome(name, "queued"))
            else:
                done.append(_outcome(name, answer.state, not_retryable(name, answer.state)))
    return _by_gang(done, "queued")


def cancelled(manager: Manager, name: str, before: CancelResult) -> task_schema.TaskOutcome:
    """Return the outcome of one cancellation; tell those who wait for the task, or its worker."""
    if not before.state:
        return _outcome(name, "", f"there is no task {name}")
    for other in before.others:
        manager.waiters.ended(other)
    if before.state in task.FINAL:
        return _outcome(name, before.state, f"task {name} is {before.state} already")
    if before.state in task.WAITING:
        manager.waiters.ended(name)
        return _outcome(name, "cancelled")
    manager.sessions.cancel(before.worker, before.api, name, before.attempt)
    return _outcome(name, "cancelling")


def not_retryable(name: str, state: str) -> str:
    if not state:
        return f"there is no task {name}"
    return f"task {name} is {state}; only {', '.join(RETRYABLE)} ones can be retried"


async def _named(
    manager: Manager, given: Sequence[str], key: Key
) -> tuple[list[str], list[task_schema.TaskOutcome]]:
    """Return the ids of tasks that are named whole or by their first characters, each once."""
    short = [name for name in given if len(name) < ID_LENGTH]
    if len(short) > MOST_SHORT_IDS:
        raise errors.Unprocessable(
            f"{len(short)} of the task_ids are shortened; at most {MOST_SHORT_IDS} may be; give whole ids"
        )
    found: dict[str, None] = {}
    failed = []
    for name in dict.fromkeys(given):
        try:
            found[await manager.tasks.full_id(name, key.sees)] = None
        except errors.Conflict as error:
            failed.append(_outcome(name, "", error.message))
    return list(found), failed


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), AT_ONCE):
        yield names[start : start + AT_ONCE]


def _outcome(name: str, status: str, error: str = "") -> task_schema.TaskOutcome:
    return task_schema.TaskOutcome(task_id=name, status=status, error=error)
