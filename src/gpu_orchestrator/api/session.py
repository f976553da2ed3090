"""The messages between a worker and the cluster manager on the worker's one WebSocket.

The worker opens `/workers/{name}/session` with its token and sends `Hello`; the server answers `Welcome` or
`Goodbye`. A frame is a JSON array of messages, so that both sides can send many at once; `pieces` says how
large ones are sent.

The worker keeps a result until its `Ack` arrives and sends it again after a reconnect; the server may send an
`Assign` again that the worker already has, and the worker must ignore it. `(task, attempt)` identifies one
run for good.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from gpu_orchestrator.api.partial import MOST_VALUES
from gpu_orchestrator.api.task_gangs import Gang

WorkerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$(?!\n)")]
Pool = Annotated[str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,62})?\Z")]
"""The name of a pool of workers; empty for none."""
Word = Annotated[str, Meta(max_length=200)]
Index = Annotated[int, Meta(ge=0, le=1023)]
Mib = Annotated[int, Meta(ge=0, le=2**31)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Number = Annotated[float, Meta(ge=-1e12, le=1e12)]
OnDisconnect = Literal["stop", "keep"]


MPS, ACCOUNTED = "mps", "accounted"
CELERY = "celery"


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all messages; `type` on the wire is the name of the class."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of the values inside messages."""


class Device(Value, frozen=True):
    """One device as the worker found it at start. `index` is its number on this worker."""

    index: Index
    uuid: Word
    vendor: Word
    model: Word
    memory_mib: Mib
    driver_version: Word = ""
    island: Annotated[int, Meta(ge=-1, le=1023)] = -1
    numa: Annotated[int, Meta(ge=-1, le=1023)] = -1


class Held(Value, frozen=True):
    """Memory that one of our runners has allocated on a device."""

    task: Word
    attempt: Count
    used_mib: Mib


class Reading(Value, frozen=True):
    """One device now. `used_mib` and `free_mib` come from the driver; `others_mib` is memory of processes
    that no runner of this worker started; `held` is what our runners have allocated. `problem` says why
    nothing may be placed here; empty when healthy. `ecc_errors` counts uncorrectable errors since the driver
    was loaded; `xid` is the driver's number of the fault that made the device unusable, 0 for none."""

    index: Index
    used_mib: Mib
    free_mib: Mib
    others_mib: Mib = 0
    held: tuple[Held, ...] = ()
    utilization: Number = 0.0
    temperature_c: Number = 0.0
    problem: str = ""
    ecc_errors: int = 0
    xid: int = 0


class Copy(Value, frozen=True):
    """A model that one of our runners has loaded, or loads now, on these devices; without devices, in the
    memory of the machine. `number` is that of the load, never reused by this worker process. `used_mib` is
    what it holds on each device, as far as the driver says so. Times are seconds before the report was made.
    `uses` counts tasks, older ones less. `task` uses it now. `server` is how the server is that backs it, if
    one does: healthy or restarting; `server_why` is what was wrong with it last."""

    model: Word
    devices: Annotated[tuple[Index, ...], Meta(max_length=1024)] = ()
    number: Count = 0
    is_loaded: bool = False
    used_mib: Mib = 0
    load_s: Number = 0.0
    loaded_ago_s: Number = 0.0
    used_ago_s: Number = 0.0
    uses: Number = 0.0
    task: Word = ""
    pinned: bool = False
    server: Word = ""
    server_why: Annotated[str, Meta(max_length=1000)] = ""
    server_restarts: Count = 0


class CacheCounts(Value, frozen=True):
    """What a worker's cache of models counted since the worker started."""

    hits: Count = 0
    misses: Count = 0
    evictions: Count = 0
    failures: Count = 0


class SystemInfo(Value, frozen=True):
    cpu: Word = ""
    ram_total_mib: Mib = 0
    ram_used_mib: Mib = 0
    os: Word = ""


class Attempt(Value, frozen=True):
    task: Word
    attempt: Count


class TaskError(Value, frozen=True):
    """`type` is a short name such as `ValueError`, `OutOfMemory` or `Timeout`; `retryable` means that a retry
    may succeed."""

    type: str
    message: str
    retryable: bool = False


# --- from the worker ---------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of every connection. Each worker process makes up its own `instance`. After a lost
    connection the worker sends its epoch in `resume_epoch` and what it still has: `running`, and in `unacked`
    the results it is about to send again. `on_disconnect` is what the worker does with its running tasks when
    it cannot renew its lease. `pieces`: it takes large messages in pieces, see `api/pieces.py`. `sharing`
    says what holds a task to the device memory that it reserved: `mps` (the driver), or `accounted`
    (nothing); empty in workers of older versions. `executor` is `celery` if the worker wants to be sent
    tickets by Celery, which it redeems (`Redeem`), in place of assignments. `model_types` are those of its
    task types that load a model which stays; it keeps up to `most_models` of them. `address` is where
    other workers reach this one; empty in workers of versions that know no gangs."""

    name: WorkerName
    instance: Word
    devices: Annotated[tuple[Device, ...], Meta(max_length=1024)] = ()
    task_types: Annotated[tuple[Word, ...], Meta(max_length=1000)] = ()
    system_info: SystemInfo = SystemInfo()
    labels: Annotated[dict[Word, Word], Meta(max_length=100)] = {}
    pool: Pool = ""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] = 1
    version: Word = ""
    sharing: Word = ""
    resume_epoch: Count = 0
    running: tuple[Attempt, ...] = ()
    unacked: tuple[Attempt, ...] = ()
    on_disconnect: OnDisconnect = "stop"
    pieces: bool = False
    executor: Word = ""
    model_types: Annotated[tuple[Word, ...], Meta(max_length=1000)] = ()
    most_models: Count = 0
    address: Word = ""


class Renew(Message, frozen=True):
    """Ask for the lease to be extended from now. The worker counts from when it sent this, so that it stops
    before the server considers it dead."""

    number: Count


class Report(Message, frozen=True):
    """All devices as they are, and the models on them: after `Welcome`, whenever memory or health changed
    noticeably or a model was loaded or evicted, and every `heartbeat_s`."""

    readings: Annotated[tuple[Reading, ...], Meta(max_length=1024)]
    ram_used_mib: Mib = 0
    copies: Annotated[tuple[Copy, ...], Meta(max_length=1000)] = ()
    cache: CacheCounts = CacheCounts()


class Started(Message, frozen=True):
    task: Word
    attempt: Count


class Progress(Message, frozen=True):
    task: Word
    attempt: Count
    line: str


class Log(Message, frozen=True):
    """What an attempt printed next: whole lines, as a terminal shows them. `at` is the position of the first
    byte of `text` (as UTF-8) in all that this attempt printed.

    Sent only if `Welcome.log_kb` is not 0. All text of an attempt is sent before its outcome. Text that the
    worker had to drop, or that was lost with a connection, leaves a gap between two positions. After a lost
    connection the worker sends the last part again; text before the position that is stored counts once."""

    task: Word
    attempt: Count
    at: Count
    text: Annotated[str, Meta(max_length=1 << 20)]


class Values(Message, frozen=True):
    """What an attempt sent before its end: partial results, in order. `at` is the number of the first.

    Sent only if `Welcome.takes_values`. The worker keeps values until a `Taken` counts them, and its runner
    waits when too many are kept. `taken`: how many the worker knows to be stored. Values after a gap are
    stored only if the gap ends there: those were taken, and the store lost them."""

    task: Word
    attempt: Count
    at: Count
    values: Annotated[tuple[msgspec.Raw, ...], Meta(min_length=1, max_length=MOST_VALUES)]
    taken: Count = 0


class Done(Message, frozen=True):
    task: Word
    attempt: Count
    result: msgspec.Raw = msgspec.Raw(b"null")


class Failed(Message, frozen=True):
    """The handler failed, or ran past a limit."""

    task: Word
    attempt: Count
    error: TaskError


class RunnerDied(Message, frozen=True):
    """The runner process ended without a result; `evidence` is its exit status or signal and its last
    lines."""

    task: Word
    attempt: Count
    evidence: str


class Refused(Message, frozen=True):
    """Not started: the device has less free memory than was reserved. This does not count as an attempt; the
    worker sends a fresh `Report` first."""

    task: Word
    attempt: Count
    reason: str


class Cancelled(Message, frozen=True):
    """Ended because of a `Cancel`, or never started because of it."""

    task: Word
    attempt: Count


class Leaving(Message, frozen=True):
    """The worker drains and will close the connection when its last task has ended: it takes no new work."""

    reason: str = ""


class Redeem(Message, frozen=True):
    """The worker has received a ticket for this attempt by Celery. The answer is `Assign`, or `Void` with the
    same `number` if the ticket does not count. `epoch` is that of the ticket."""

    number: Count
    task: Word
    attempt: Count
    epoch: Count


# --- from the server ---------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """`resumed` false: what the worker ran under an older epoch is no longer its own and must be stopped.
    `log_kb` is how much of a task's log the server keeps; 0: send no `Log`. `pieces`: the server takes large
    messages in pieces. `takes_values`: it keeps partial results. `executor`: `celery` if this worker is sent
    tickets by Celery."""

    worker_id: str
    epoch: int
    lease_s: float
    renew_every_s: float
    heartbeat_s: float
    resumed: bool = False
    log_kb: int = 0
    pieces: bool = False
    takes_values: bool = False
    executor: str = ""


class Renewed(Message, frozen=True):
    number: int


class Given(Value, frozen=True):
    """A device given to an attempt. `model` is its name at that time; empty in assignments of older
    versions."""

    index: int
    uuid: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.index} {self.uuid} {self.model}".strip()


class Model(Value, frozen=True):
    """A model as the manager's registry has it. `path` is where its weights are, on the worker; `options` are
    the operator's, for the handler that loads it."""

    name: str
    path: str = ""
    options: msgspec.Raw = msgspec.Raw(b"{}")


class Assign(Message, frozen=True):
    """`memory_mib` is reserved on each device (0 with `exclusive`: all of it). Without `devices`, the task
    uses no GPU. `owner` owns the task; empty in assignments of older versions. `model` is loaded first, if
    the task's type is one that loads models; with `only_load`, nothing more is done. Without `has_elsewhere`
    no other device could take that model: if memory runs out here, the task is not retried. `gang` is set for
    a member of one."""

    task: str
    attempt: int
    task_type: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    model_name: str = ""
    devices: tuple[Given, ...] = ()
    memory_mib: int = 0
    exclusive: bool = False
    soft_limit_s: float = 0.0
    timeout_s: float = 0.0
    correlation_id: str = ""
    owner: str = ""
    model: Model | None = None
    only_load: bool = False
    has_elsewhere: bool = True
    gang: Gang | None = None


class Cancel(Message, frozen=True):
    """Ask the handler, then SIGTERM, then SIGKILL, `grace_s` apart."""

    task: str
    attempt: int
    grace_s: float = 5.0


class Ack(Message, frozen=True):
    """The outcome of this attempt is stored, or came too late and was dropped: forget it either way."""

    task: str
    attempt: int
    accepted: bool = True


class Taken(Message, frozen=True):
    """So many values of this attempt need not be sent again: they are stored, or dropped for good. `later`:
    the next one was refused for now, because a reader is behind or the store has trouble; send it again."""

    task: str
    attempt: int
    values: int
    later: bool = False


class Void(Message, frozen=True):
    """A ticket does not count: `old` (its attempt is no longer this worker's), `again` (it was redeemed
    before), or `store` (the store does not answer; the ticket is sent again)."""

    number: int
    reason: str


class Drain(Message, frozen=True):
    """Finish what runs and take nothing new; with `leave`, close the connection and exit after that."""

    leave: bool = False


class Pins(Message, frozen=True):
    """The models whose copies here are never evicted: all of them, in place of those said before. Sent only
    to workers with `model_types`."""

    models: tuple[str, ...] = ()


class Preload(Message, frozen=True):
    """Load a model on these devices now, if there is room beside all that is there: tasks that wait will name
    it. A worker that has no room does nothing. Sent only to workers with `model_types`."""

    task_type: str
    model: Model
    devices: tuple[Given, ...] = ()
    memory_mib: int = 0


class Unload(Message, frozen=True):
    """End the runners that hold this model; with `force` also those that a task uses: the task is retried.
    Sent only to workers with `model_types`."""

    model: str
    force: bool = False


class Goodbye(Message, frozen=True):
    """The server closes the connection. `fenced`: stop all runners and send a new `Hello` without
    resuming. `refused`: the worker cannot join as it is, because its name is taken or there are too many;
    trying again helps only if that changes soon. `hold_s`: the server ends as planned, and the lease lasts
    that long, counted from when the worker sent its last renewal that was granted: time to join another
    server, or the same one after its restart."""

    reason: str
    fenced: bool = False
    retry: bool = True
    refused: bool = False
    hold_s: float = 0.0


Outcome = Done | Failed | RunnerDied | Refused | Cancelled
ToServer = Hello | Renew | Report | Started | Progress | Log | Values | Outcome | Leaving | Redeem
ToWorker = (
    Welcome | Renewed | Assign | Cancel | Ack | Taken | Void | Drain | Pins | Preload | Unload | Goodbye
)

Said = TypeVar("Said", bound=Message)

_encoder = msgspec.json.Encoder()
_to_server = msgspec.json.Decoder(list[ToServer])
_to_worker = msgspec.json.Decoder(list[ToWorker])


def frame(*messages: Message) -> bytes:
    return _encoder.encode(messages)


def read_by_server(data: bytes | str) -> list[ToServer]:
    """Decode a frame; raise `msgspec.MsgspecError` for anything that a worker of this version does not
    send."""
    try:
        return _to_server.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def read_by_worker(data: bytes | str) -> list[ToWorker]:
    return _to_worker.decode(data)
