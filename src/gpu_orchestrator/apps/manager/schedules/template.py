"""The task of a schedule, as the store keeps it between its moments: made from a new task, and made into
one."""

import msgspec
from msgspec import structs

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.schedules import ScheduleRow
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.schedules import moments
from gpu_orchestrator.apps.manager.views import when

NAME, MOMENT = "schedule", "scheduled_for"
"""The labels by which a task is known as one of a schedule."""


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """`spec` is JSON; `expires_ms` is negative: how long after it was queued."""

    spec: str
    retries: int
    level: int
    lost_workers: int
    expires_ms: int = 0


_decoder = msgspec.json.Decoder(Template)


def written(new: NewTask) -> str:
    template = Template(new.spec, new.retries, new.level, new.lost_workers, new.expires_ms)
    return msgspec.json.encode(template).decode()


def spec_of(row: ScheduleRow) -> TaskSpec:
    return task.decode(_decoder.decode(row.task).spec)


def at_moment(row: ScheduleRow, moment_ms: int) -> NewTask:
    """Return the task of one moment."""
    name = moments.task_id(row.id, moment_ms)
    return labelled(row, name, {MOMENT: when(moment_ms) or ""}, f"{row.id}-{moment_ms}")


def labelled(row: ScheduleRow, name: str, labels: dict[str, str], correlation: str) -> NewTask:
    """Return a task of this schedule with more labels."""
    kept = _decoder.decode(row.task)
    spec = task.decode(kept.spec)
    spec = structs.replace(spec, labels={**spec.labels, NAME: row.name, **labels})
    return NewTask(
        name,
        task.encode(spec),
        row.params,
        kept.retries,
        "",
        correlation,
        row.owner,
        kept.level,
        0,
        kept.expires_ms,
        kept.lost_workers,
    )
