"""Read which tasks a request is about: the query of a list, or the body of a bulk change.

A key that sees only its owner's tasks can filter only those; the store gets its owner in any case.
"""

from collections.abc import Sequence

from gpu_orchestrator.adapters.store.task_lists import Filter
from gpu_orchestrator.api import task, timestamps
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key

MOST_SPAN_S = 10 * 365 * 86_400.0


def of_query(
    key: Key, *, status: str, worker_id: str, task_type: str, label: Sequence[str], owner: str, since: str
) -> Filter:
    states = [state for state in status.split(",") if state]
    if unknown := [state for state in states if state not in task.STATES]:
        raise errors.Unprocessable(f"unknown status {unknown[0]!r}; known: {', '.join(task.STATES)}")
    labels = tuple(_label(each) for each in label)
    return Filter(tuple(states), worker_id, seen_owner(key, owner), task_type, labels, since_ms(since))


def of_selection(key: Key, wanted: task_schema.TaskSelection, states: Sequence[str]) -> Filter:
    """Return the filter of a bulk change; `states` are those in which a task can be changed."""
    return Filter(
        tuple(wanted.status or states),
        wanted.worker_id,
        seen_owner(key, wanted.owner),
        wanted.task_type,
        tuple(wanted.labels.items()),
    )


def seen_owner(key: Key, asked: str) -> str:
    """Return the owner whose tasks to look at; empty for all. Only an admin may ask for another's."""
    if asked and key.sees not in ("", asked):
        raise errors.Forbidden(
            f"this key ({key.id}) sees the tasks of {key.owner} alone; admin is needed for those of {asked}",
            needs="admin",
        )
    return asked or key.sees


def since_ms(text: str) -> int:
    """Return a moment in ms, or a span before now as a negative number: the store subtracts it from its own
    clock."""
    try:
        return timestamps.span_or_moment_ms(text, MOST_SPAN_S)
    except (ValueError, OverflowError) as error:
        raise errors.Unprocessable(
            f"since={text!r} is not a time; write how long ago, such as 10m, 2h or 7d, "
            "or a moment, such as 2026-01-31T12:00:00Z"
        ) from error


def _label(text: str) -> tuple[str, ...]:
    name, equals, value = text.partition("=")
    if not name:
        raise errors.Unprocessable(f"label={text!r} has no name; write label=name or label=name=value")
    return (name, value) if equals else (name,)
