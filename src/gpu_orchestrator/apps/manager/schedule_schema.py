"""The request and response bodies of the HTTP API for schedules."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_orchestrator.apps.manager.schema import Answer, Body
from gpu_orchestrator.apps.manager.task_schema import TaskRequest


class ScheduleRequest(Body, frozen=True):
    """`name` has letters, digits, `_`, `.`, `:` and `-`. `schedule` has five fields (minute, hour, day of the
    month, month, day of the week), or is `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`, or
    `@every 30s`. `task` is as in `POST /tasks`, but for `not_before`, `depends_on` and `idempotency_key`; its
    `expires` says how long from each moment.

    `missed`: what becomes of moments at which no server could queue the task: the latest is run
    (`run_once`), or each of the latest hundred (`run_all`), or none that is more than a minute old (`skip`).
    `overlap`: what if the task of the moment before has not ended: begin beside it (`allow`), pass this
    moment over (`skip`), or wait for it (`queue`). `jitter`, such as `10m`: fire up to so much later, always
    by the same delay, so that schedules for the same moment are spread. With `replace`, a schedule of this
    name is changed to this one."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    schedule: Annotated[str, Meta(min_length=1, max_length=200)]
    task: TaskRequest
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    missed: Literal["run_once", "run_all", "skip"] = "run_once"
    overlap: Literal["allow", "skip", "queue"] = "allow"
    jitter: Annotated[str, Meta(max_length=40)] = ""
    replace: bool = False


class Schedule(Answer, frozen=True):
    """`status` is active, paused or stopped, and `reason` says why it does not fire, or that its last moment
    waits for room. `next_at` is when it fires, `upcoming` the next moments without jitter. `fired` counts
    its tasks, `passed_over` the moments without one. Its tasks have the labels `schedule`, with the name, and
    `scheduled_for`, with the moment. It runs under the key `key_id`, and stops when that is over."""

    schedule_id: str
    name: str
    owner: str
    key_id: str
    schedule: str
    timezone: str
    missed: str
    overlap: str
    jitter: str
    status: str
    reason: str
    next_at: str | None
    upcoming: list[str]
    last_at: str | None
    last_task: str | None
    fired: int
    passed_over: int
    created_at: str
    task_type: str
    model_name: str
    priority: int
    gpus: int
    labels: dict[str, str]
    pool: str


class SchedulePage(Answer, frozen=True):
    schedules: list[Schedule]
    total: int
    limit: int
    offset: int


class ScheduleGone(Answer, frozen=True):
    schedule_id: str
    name: str
    status: str
