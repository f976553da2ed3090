"""The request and response bodies of the HTTP API for tasks: submissions, states, logs and explanations."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpu_orchestrator.api import task, task_gangs
from gpu_orchestrator.apps.manager.schema import Answer, Body

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Labels = Annotated[dict[Name, Annotated[str, Meta(max_length=1000)]], Meta(max_length=64)]
"""Few and short, because the leader keeps the labels of every waiting task in memory, unlike parameters."""


PoolName = Annotated[str, Meta(max_length=63)]
WorkerLabels = Annotated[dict[Name, Annotated[str, Meta(max_length=200)]], Meta(max_length=16)]
Moment = Annotated[str, Meta(max_length=40)]
"""How long from now, such as `10m` or `2h`, or a time, such as `2026-01-31T12:00:00Z`."""


class Resources(Body, frozen=True):
    """`gpu_memory`, such as "10GB" or "800MiB", is reserved on each of `gpus` devices. Without it the task
    gets whole devices. `gpus` 0 means that the task needs no GPU. No other task gets what was reserved. On
    workers with `GPU_SHARING=mps` a task cannot take more than that; on others (`sharing` is `accounted`)
    nothing stops it, and what it takes beyond its reservation counts as used, so less is placed beside it. A
    task with `labels` runs only on workers that have all of them; one with `pool` only on workers of that
    pool, and those take no other tasks."""

    gpu_memory: Annotated[str, Meta(max_length=40)] | int = ""
    gpus: Annotated[int, Meta(ge=0, le=64)] = 1
    vendor: Annotated[str, Meta(max_length=40)] = ""
    labels: WorkerLabels = {}
    pool: PoolName = ""


class Gang(Body, frozen=True):
    """`size` tasks that begin together and end together, with ranks from 0. In a batch, tasks with the same
    `name` are one gang: each adds `size` members, in their order. All members run on workers with the same
    value of the label `same`; with `near`, if that is possible at once."""

    size: Annotated[int, Meta(ge=1, le=task_gangs.MOST_MEMBERS)] = 1
    name: Annotated[str, Meta(max_length=200)] = ""
    same: Annotated[str, Meta(max_length=task_gangs.LONGEST_KEY)] = ""
    near: Annotated[str, Meta(max_length=task_gangs.LONGEST_KEY)] = ""


class TaskRequest(Body, frozen=True):
    """`not_before` and `expires` are how long from now (`10m`, `2h`, `7d`) or a time
    (`2026-01-31T12:00:00Z`). Until `not_before` the task is `scheduled`, and no part of the queue. After
    `expires` no attempt begins: a task that waits then has `failed` with the error type `Expired`.
    `max_lost_workers`: when this many different workers were lost while they ran it, it is `dead`. With
    `gang`, the request makes several tasks: all begin, or none; if one fails, all are stopped and begin
    again, and their retries are counted together; their results count once all are done. `callback_url` is
    called for the first of them."""

    task_type: Name
    parameters: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    model_name: Annotated[str, Meta(max_length=500)] = ""
    priority: Annotated[str, Meta(max_length=40)] | Annotated[int, Meta(ge=0, le=100)] = "normal"
    timeout: Annotated[float, Meta(gt=0, le=604_800)] | None = None
    resources: Resources = Resources()
    max_retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    idempotency_key: Annotated[str, Meta(max_length=200)] = ""
    labels: Labels = {}
    callback_url: Annotated[str, Meta(max_length=2000)] = ""
    not_before: Moment = ""
    expires: Moment = ""
    max_lost_workers: Annotated[int, Meta(ge=1, le=100)] | None = None
    result_ttl: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    """Seconds for which the task and its result are kept after it ended; at most `TASK_RETENTION`."""
    cache: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    """Seconds for which the result answers for equal tasks that ask for the cache, too: of the same owner,
    type, model and parameters. Such a task is not run; the answer names the one that has completed."""
    depends_on: Annotated[list[Name], Meta(max_length=1000)] = []
    """Whole ids of tasks of the same owner that must have ended before this one begins. Until then it is
    `scheduled`, and they are kept. In `parameters`, `{"$result": "ID"}` stands for the result of one of
    them, null if it has none."""
    on_failure: Literal["cancel", "run"] = "cancel"
    """What becomes of this task if one of them ends without a result."""
    gang: Gang | None = None


class TaskResult(Answer, frozen=True):
    """Not an object of these fields: any JSON value, as the task's handler returned it."""


class TaskBatch(Body, frozen=True):
    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=10_000)]


class TaskAccepted(Answer, frozen=True):
    """`status` and `assigned_worker` are those of the earlier task if the idempotency key is known, or
    if the result cache has one."""

    task_id: str
    status: str
    estimated_wait_time: str
    estimated_wait_seconds: float
    assigned_worker: str | None
    created_at: str
    gang_id: str = ""
    members: list[str] = []
    """The ids of all members of a gang that this request made, by rank; `task_id` is the first of them."""


class BatchAccepted(Answer, frozen=True):
    tasks: list[TaskAccepted]
    total: int


class Death(msgspec.Struct, frozen=True):
    """An attempt that ended badly: its worker was lost (`kind` worker), its runner died (runner), or it ran
    out of memory (memory). The last has the devices with the memory that was reserved on each, 0 for whole
    devices, and what the worker had last measured there."""

    worker: str
    attempt: int
    kind: str
    evidence: str
    at: int
    devices: list[int] = []
    reserved_mib: int = 0
    used_mib: int = 0


class ErrorInfo(msgspec.Struct, frozen=True):
    type: str
    message: str
    retryable: bool = False


class TaskDevice(msgspec.Struct, frozen=True):
    """A device of an attempt. `model` is empty for attempts that an older version started."""

    index: int
    uuid: str
    model: str = ""


class TaskStatus(Answer, frozen=True):
    """`devices` are those of the current attempt, or else of the last one. `memory_reserved` is the memory
    reserved on each of them; with `exclusive` the task has whole devices. While the task is queued, `reason`
    says why it waits, and `queue_position` how far ahead it is: 1 is next, by priority and age. The position
    is approximate, because owners take turns and some tasks fit earlier than others. `waits_for_worker`: no
    worker that is there can ever take it, so it waits until another joins. A task is `scheduled` until
    `not_before`; `expires` is when it ends if it waits then. Of a list's queued tasks with more than 100
    different requests, some have no reason; `explain` has it. `result` is null in lists, and if the
    result has more than `RESULT_SHOWN_KB`: `result_bytes` is its size then, and `result_url` where to get
    it. Parameters are never shown."""

    task_id: str
    status: str
    task_type: str
    model_name: str
    priority: int
    attempt: int
    assigned_worker: str | None
    created_at: str
    started_at: str | None
    completed_at: str | None
    duration: str | None
    duration_seconds: float | None
    progress: str | None
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: ErrorInfo | None = None
    reason: str = ""
    deaths: list[Death] = []
    labels: dict[str, str] = {}
    correlation_id: str = ""
    callback: str = ""
    """The state of the callback; empty if the task has none or has not ended yet."""
    owner: str = ""
    gpus: int = 0
    devices: list[TaskDevice] = []
    memory_reserved: str = ""
    memory_reserved_bytes: int = 0
    exclusive: bool = False
    queue_position: int | None = None
    waits_for_worker: bool = False
    not_before: str | None = None
    expires: str | None = None
    worker_labels: dict[str, str] = {}
    pool: str = ""
    result_bytes: int = 0
    result_url: str = ""
    depends_on: list[str] = []
    on_failure: str = ""
    open_dependencies: int = 0
    """How many of the tasks that it depends on have not ended."""
    gang_id: str = ""
    gang_rank: int | None = None
    gang_size: int = 0


class GangStatus(Answer, frozen=True):
    """A gang and its members, by rank. `status` is that of all of them; while they differ, `stopping` if one
    has ended without a result or is about to, else `running`. Members are kept as long as other tasks: those
    that were forgotten are missing."""

    gang_id: str
    status: str
    size: int
    attempt: int
    members: list[TaskStatus]


class TaskPage(Answer, frozen=True):
    """`total` counts all tasks that match. With `complete` false there may be more: by `task_type` and
    `label` 100,000 tasks are searched, those that have not ended first; by `worker_id` the latest 1,000 of
    the worker. Narrow the search with `since` or `status`."""

    tasks: list[TaskStatus]
    total: int
    limit: int
    offset: int
    complete: bool = True


class TaskChanged(Answer, frozen=True):
    """The status of a task after a cancellation or a retry."""

    task_id: str
    status: str


class TaskSelection(Body, frozen=True):
    """Tasks to cancel or to retry: `task_ids`, or all that match every other field that is given. Of ids, up
    to 20 may be shortened to their first characters. `all` is needed if no other field is given. Without
    `status`, the tasks are those that can be cancelled or retried."""

    task_ids: Annotated[list[Name], Meta(max_length=1000)] = []
    status: Annotated[list[task.State], Meta(max_length=8)] = []
    task_type: Annotated[str, Meta(max_length=200)] = ""
    labels: Labels = {}
    worker_id: Annotated[str, Meta(max_length=200)] = ""
    owner: Annotated[str, Meta(max_length=63)] = ""
    all: bool = False


class TaskWait(Body, frozen=True):
    """The tasks to wait for, by their whole ids."""

    task_ids: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]


class TaskOutcome(Answer, frozen=True):
    """`status` is the task's status afterwards, empty if it is not known. `error` says why nothing was done;
    empty if it was."""

    task_id: str
    status: str
    error: str


class TasksChanged(Answer, frozen=True):
    """`total` counts the tasks listed here. `remaining` counts those that match and were left, because a call
    changes at most 10,000; repeat it. With `complete` false still more may match, as in `TaskPage`."""

    tasks: list[TaskOutcome]
    total: int
    remaining: int = 0
    complete: bool = True


class TaskLog(Answer, frozen=True):
    """A part of a task's log. Positions count the bytes since the log began: `offset` is that of the first
    character of `text`, `next` is what to pass as `after`. `omitted_bytes` of the log before `offset` are no
    longer kept. `ended`: the task has ended, and nothing follows."""

    task_id: str
    attempt: int
    status: str
    offset: int
    next: int
    text: str
    omitted_bytes: int
    ended: bool


class TaskValues(Answer, frozen=True):
    """What an attempt at a task sent before its end. `values` are numbered from `first` on; before them
    `missed` are no longer kept. `next` is what to pass as `after`: the attempt, and how many of its values
    come before. `ended`: the task has ended, and nothing follows."""

    task_id: str
    attempt: int
    status: str
    first: int
    next: str
    values: msgspec.Raw
    missed: int
    ended: bool


class DeviceVerdict(Answer, frozen=True):
    index: int
    uuid: str
    model: str
    fits: bool
    why: str
    memory_free: str
    memory_free_bytes: int


class WorkerVerdict(Answer, frozen=True):
    """`sharing` as in the answers about workers: what holds the task to the memory that it reserves there."""

    worker_id: str
    fits: bool
    why: list[str]
    devices: list[DeviceVerdict]
    sharing: str


class Explanation(Answer, frozen=True):
    """`workers` says of every device whether it could be used now; it is empty once the task has ended.
    `last_worker` and `last_devices` are those of the current attempt, or else of the last one."""

    task_id: str
    status: str
    reason: str
    policy: str
    would_go_to: str | None
    reasons: list[str]
    workers: list[WorkerVerdict]
    last_worker: str | None
    last_devices: list[TaskDevice]
    expires: str | None = None
    """When it ends if it still waits then."""
