"""The request and response bodies of the HTTP API, but those of tasks (`task_schema`) and of keys
(`access/schema.py`). Routes decode and encode them.

Next to each string for people (`24GB`, `3.2s`) is a field with the number.
The docstrings here become descriptions in OpenAPI and in `docs/reference/api.md`.
"""

from typing import Any

import msgspec

PREFIX = "/api/v1"
"""The server answers every path with and without this prefix."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request. An unknown field is a mistake of the sender, and the server reports it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a response."""


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
    """`on_disconnect` is what happens to running tasks if the worker cannot renew its lease: it ends them
    (`stop`), or lets them run (`keep`), perhaps beside a second run on another worker. `sharing` is `mps` if
    the driver holds tasks to the device memory that they reserved, and `accounted` if reserved memory is only
    counted. `circuit` is `open` while the worker gets no tasks because too many failed there, and `half_open`
    while it gets one at a time."""

    worker_id: str
    status: str
    gpu_info: list[GpuInfo]
    current_tasks: int
    max_concurrent: int
    last_heartbeat: str | None
    performance_score: float
    labels: dict[str, str]
    task_types: list[str]
    on_disconnect: str
    pool: str
    sharing: str
    loaded_models: list[str]
    circuit: str
    circuit_reason: str
    circuit_until: str | None


class LoadedModel(Answer, frozen=True):
    """A model that a worker has loaded. `memory_usage` is what it holds on all of its devices. `server` is
    how the server is that backs it, `healthy` or `restarting`; empty if none does."""

    name: str
    memory_usage: str
    memory_usage_bytes: int
    load_time: str
    load_seconds: float
    last_used: str | None
    devices: list[int]
    pinned: bool
    in_use: bool
    server: str = ""


class WorkerDetail(WorkerInfo, frozen=True):
    loaded_models: list[LoadedModel]  # type: ignore[assignment]
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


# --- files -------------------------------------------------------------------------------------------------


class FileInfo(Answer, frozen=True):
    """A file that an owner has uploaded, or that a task has left."""

    file_id: str
    name: str
    bytes: int
    sha256: str
    created_at: str
    expires_at: str


class FilePage(Answer, frozen=True):
    """`total` and `bytes` are those of all files of the owner."""

    files: list[FileInfo]
    total: int
    bytes: int


class FileGone(Answer, frozen=True):
    file_id: str
