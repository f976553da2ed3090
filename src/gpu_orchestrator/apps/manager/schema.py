"""The request and response bodies of the HTTP API. Routes decode and encode them.

Next to each string for people (`24GB`, `3.2s`) is a field with the number.
The docstrings here become descriptions in OpenAPI and in `docs/reference/api.md`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.api import task

PREFIX = "/api/v1"
"""The server answers every path with and without this prefix."""

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Labels = Annotated[dict[Name, Annotated[str, Meta(max_length=1000)]], Meta(max_length=64)]
"""Few and short, because the leader keeps the labels of every waiting task in memory, unlike parameters."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request. An unknown field is a mistake of the sender, and the server reports it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a response."""


# --- tasks -------------------------------------------------------------------------------------------------


class Resources(Body, frozen=True):
    """`gpu_memory`, such as "10GB" or "800MiB", is reserved on each of `gpus` devices. Without it the task
    gets whole devices. `gpus` 0 means that the task needs no GPU. Memory is reserved, not enforced: no other
    task gets it, but nothing stops a task that allocates more. What it takes beyond its reservation counts as
    used, so less is placed beside it."""

    gpu_memory: Annotated[str, Meta(max_length=40)] | int = ""
    gpus: Annotated[int, Meta(ge=0, le=64)] = 1
    vendor: Annotated[str, Meta(max_length=40)] = ""


class TaskRequest(Body, frozen=True):
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


class TaskBatch(Body, frozen=True):
    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=10_000)]


class TaskAccepted(Answer, frozen=True):
    task_id: str
    status: str
    estimated_wait_time: str
    estimated_wait_seconds: float
    assigned_worker: str | None
    created_at: str


class BatchAccepted(Answer, frozen=True):
    tasks: list[TaskAccepted]
    total: int


class Death(msgspec.Struct, frozen=True):
    worker: str
    attempt: int
    kind: str
    evidence: str
    at: int


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
    worker that is there can ever take it, so it waits until another joins. Of a list's queued tasks with more
    than 100 different requests, some have no reason; `explain` has it."""

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
    status: Annotated[list[task.State], Meta(max_length=7)] = []
    task_type: Annotated[str, Meta(max_length=200)] = ""
    labels: Labels = {}
    worker_id: Annotated[str, Meta(max_length=200)] = ""
    owner: Annotated[str, Meta(max_length=63)] = ""
    all: bool = False


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


class DeviceVerdict(Answer, frozen=True):
    index: int
    uuid: str
    model: str
    fits: bool
    why: str
    memory_free: str
    memory_free_bytes: int


class WorkerVerdict(Answer, frozen=True):
    worker_id: str
    fits: bool
    why: list[str]
    devices: list[DeviceVerdict]


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


# --- workers -----------------------------------------------------------------------------------------------


class GpuAlert(Answer, frozen=True):
    kind: str
    message: str
    value: float
    since: str


class GpuInfo(Answer, frozen=True):
    index: int
    uuid: str
    vendor: str
    model: str
    memory_total: str
    memory_total_bytes: int
    memory_used: str
    memory_used_bytes: int
    memory_reserved_bytes: int
    temperature: float
    utilization: float
    driver_version: str
    cordoned: bool
    problem: str
    alerts: list[GpuAlert] = []


class WorkerSystem(Answer, frozen=True):
    cpu: str
    ram_total: str
    ram_total_bytes: int
    ram_used: str
    ram_used_bytes: int
    os: str


class TaskHistory(Answer, frozen=True):
    completed_today: int
    average_duration: str
    average_duration_seconds: float
    success_rate: float


class WorkerInfo(Answer, frozen=True):
    worker_id: str
    status: str
    gpu_info: list[GpuInfo]
    current_tasks: int
    max_concurrent: int
    last_heartbeat: str | None
    performance_score: float
    labels: dict[str, str]
    task_types: list[str]


class WorkerDetail(WorkerInfo, frozen=True):
    system_info: WorkerSystem
    task_history: TaskHistory
    registered_at: str
    epoch: int


class WorkerPage(Answer, frozen=True):
    workers: list[WorkerInfo]
    total: int
    online: int
    offline: int


class WorkerRegistered(Answer, frozen=True):
    """If `resumed` is false, the worker has lost the tasks that it ran before. The worker must renew its
    lease every `renew_seconds`, with a `Renew` in a heartbeat."""

    worker_id: str
    epoch: int
    resumed: bool
    lease_seconds: float
    renew_seconds: float
    heartbeat_interval: float


class WorkerChanged(Answer, frozen=True):
    worker_id: str
    status: str


# --- cluster -----------------------------------------------------------------------------------------------


class ClusterStatus(Answer, frozen=True):
    """`available_memory` is what can still be reserved: of each device at most the part `memory_threshold`
    (GPU_MEMORY_THRESHOLD), so it is less than `total_memory` even if nothing runs."""

    cluster_id: str
    status: str
    total_workers: int
    active_workers: int
    queued_tasks: int
    running_tasks: int
    gpu_utilization: float
    total_memory: str
    total_memory_bytes: int
    available_memory: str
    available_memory_bytes: int
    memory_threshold: float
    uptime: str
    uptime_seconds: float
    leader: str
    tasks: dict[str, int]
    committed: int
    """Results committed since the store was created. More of them than completed tasks would be a bug."""


class MetricsPoint(Answer, frozen=True):
    """Gauges are means over the bucket that starts at `timestamp`. Counts are what that bucket added."""

    timestamp: str
    queued_tasks: float
    queued_tasks_max: int
    running_tasks: float
    submitted: int
    completed: int
    failed: int
    cancelled: int
    requeued: int
    active_workers: float
    gpus: float
    gpu_utilization: float
    temperature_max: float
    memory_used_bytes: int
    memory_total_bytes: int


class MetricsHistory(Answer, frozen=True):
    """Oldest first. Points are missing for times without a leader."""

    timeframe: str
    resolution_seconds: int
    points: list[MetricsPoint]


class Event(Answer, frozen=True):
    """One event of the cluster. Resume from its `id` with `?after=` or `Last-Event-ID`."""

    id: str
    event: str
    timestamp: str
    data: msgspec.Raw


class EventPage(Answer, frozen=True):
    """`next` is the id to continue from. `reset` means that events before these are no longer kept."""

    events: list[Event]
    next: str
    reset: bool


class Health(Answer, frozen=True):
    status: str
    timestamp: str
    version: str
    dependencies: dict[str, str]


class Problem(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorBody(msgspec.Struct, frozen=True):
    error: Problem
