"""Arguments and answers of the scripts: msgpack arrays whose fields are named here."""

from enum import Enum
from typing import Literal

import msgspec

Fence = int
"""The number of a leader's term, 0 for a process that does not lead. A later leader has a higher one."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """Base class: encoded as an array, fields in order."""


class Breaker(Item, frozen=True):
    """When a worker's circuit opens: of at least `fewest` tasks in a window, this many percent failed. With
    `fewest` 0, never."""

    window_ms: int = 60_000
    fewest: int = 5
    percent: int = 60
    pause_ms: int = 30_000
    longest_ms: int = 600_000


class NewTask(Item, frozen=True):
    """`spec` and `params` are JSON. `idempotency` identifies the task across repeated submissions; empty for
    none. `level` is 0 to 3 for a low, normal, high or critical priority. `not_before_ms` and `expires_ms` are
    moments; if negative, how long from now by the store's clock; 0 for none. `lost_workers` is how many
    different ones make it a dead letter. `needs` is empty, or `cancel` or `run` (what to do when a dependency
    fails) with the ids of its dependencies behind it. `gang` is how many members its gang has, 0 for none;
    its `id` is then that of the gang with a rank behind it. Members come together, by rank, and the first has
    the key of all."""

    id: str
    spec: str
    params: str
    retries: int = 3
    idempotency: str = ""
    correlation: str = ""
    tenant: str = ""
    level: int = 1
    not_before_ms: int = 0
    expires_ms: int = 0
    lost_workers: int = 2
    needs: str = ""
    gang: int = 0


class Unit(Item, frozen=True):
    """The tasks of one request, which the store accepts all together or not at all. `tasks` counts them by
    level. The limits are how many tasks of this owner may be queued, how many at each level, and how many GPU
    milliseconds the owner may have used today; 0 means unlimited."""

    owner: str
    most_queued: int
    most_at_level: int
    most_gpu_ms: int
    tasks: tuple[int, ...] = (0, 0, 0, 0)


ANY_NUMBER = Unit("", 0, 0, 0)


class Accepted(Item, frozen=True):
    """The task is in the store: a new one (`fresh` is 1), or an earlier one with the same idempotency key
    (0), with its state and its worker."""

    id: str
    created_ms: int
    fresh: int
    state: str = "queued"
    worker: str = ""


class KeyConflict(Item, frozen=True):
    """The idempotency key belongs to the task `id`, which has different content."""

    id: str


class Limit(Enum):
    """The limit that a request would exceed; the values are the codes of the scripts."""

    OWNER_QUEUE = -2
    LEVEL_QUEUE = -3
    DAY_BUDGET = -4
    OLDER_LEADER = -5
    """The process that leads is of a version without gangs."""


class NoRoom(Item, frozen=True):
    """No task of the request was accepted. For `DAY_BUDGET`, `retry_after_ms` is the time until the next day;
    else it is 0, because the store cannot tell when a queue gets shorter."""

    limit: Limit
    retry_after_ms: int = 0


Submitted = Accepted | KeyConflict | NoRoom


class Assignment(Item, frozen=True):
    """`attempt` counts the runs so far; `place` is JSON for the worker; `milli` is how many thousandths of a
    GPU the attempt holds."""

    id: str
    attempt: int
    worker: str
    epoch: int
    place: str
    milli: int = 0


class Assigned(Item, frozen=True):
    """The store assigned the task to the worker; `parameters` is JSON."""

    parameters: str
    correlation: str


class Moved(Enum):
    """Which of the two changed after the leader decided, or that the answer had no room for more parameters;
    the values are the words of the scripts."""

    TASK = "task moved on"
    WORKER = "worker moved on"
    LATER = "later"
    GANG = "gang moved on"
    """Another member of its gang could not be assigned, so none was."""


class NotAssigned(Item, frozen=True):
    moved: Moved


AssignResult = Assigned | NotAssigned


OutcomeKind = Literal["done", "failed", "died", "refused", "cancelled"]


class Outcome(Item, frozen=True):
    """How an attempt ended. `payload` is the result or error as JSON, or evidence as text. With `wanted` the
    answer includes the task's row, because a caller waits for it. `line` is the last line of progress, if it
    is not stored yet. `result_at` is where a large result was written; the payload is empty then."""

    id: str
    attempt: int
    worker: str
    epoch: int
    kind: OutcomeKind
    payload: str = ""
    retryable: bool = False
    delay_ms: int = 0
    duration_ms: int = 0
    wanted: bool = False
    line: str = ""
    result_at: str = ""


class Note(Item, frozen=True):
    """`began_ms` is how long ago the attempt started, -1 if this is only a line of progress."""

    id: str
    attempt: int
    worker: str
    epoch: int
    began_ms: int = -1
    line: str = ""


class Registration(Item, frozen=True):
    """`joined_with` is the id of the key that the worker joined with, `uuids` are those of its devices."""

    name: str
    instance: str
    spec: str
    api: str
    connection: str
    resume_epoch: int = 0
    joined_with: str = ""
    takes_any_name: int = 0
    uuids: tuple[str, ...] = ()


class Renewal(Item, frozen=True):
    name: str
    epoch: int
    connection: str


class Active(Item, frozen=True):
    """An attempt that is assigned to a worker according to the store. `cancel` is 1 if it is to be cancelled,
    `began` if the worker has said that it began."""

    id: str
    attempt: int
    cancel: int
    began: int = 0


class Renewed(Item, frozen=True):
    """What the store answers to a renewal: what an operator wishes of the worker, and its attempts."""

    wish: Literal["", "drain", "leave"]
    active: tuple[Active, ...]


class Departure(Item, frozen=True):
    name: str
    epoch: int
    why: str


class ExpiredLease(Item, frozen=True):
    """A worker's expired lease; `suspect` is 1 if the worker had lost its connection before."""

    name: str
    epoch: int
    suspect: int


class ElectionResult(Item, frozen=True):
    """`fence` is 0 if the caller does not lead; `expired` are leases of workers that ran out; `apis` are the
    names of the processes that took part in an election recently; `highest` is the latest fence given to
    any."""

    fence: Fence
    now_ms: int
    owner: str
    workers: int
    expired: tuple[ExpiredLease, ...]
    apis: tuple[str, ...]
    highest: Fence = 0


# --- news for the leader -----------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A change in the store that the leader must know; its first item is the name of the class."""


class Queued(News, frozen=True):
    """A task that is new or back in the queue, not to run before `after_ms`. `deaths` is the evidence of
    earlier deaths as JSON."""

    id: str
    spec: str
    attempt: int
    after_ms: int
    created_ms: int
    deaths: str = ""


class Ended(News, frozen=True):
    """The attempt ended and released its devices; it used `gpu_ms` GPU milliseconds."""

    id: str
    worker: str
    attempt: int
    gpu_ms: int = 0


class Gone(News, frozen=True):
    """A queued task that must not run any more."""

    id: str


class Worker(News, frozen=True):
    """A worker's current row, alternating fields and values; empty if the worker was removed."""

    name: str
    row: tuple[str, ...]


class Linked(News, frozen=True):
    """A task with dependencies or dependents is new, or has ended: call `see_to_links`."""


class Resync(News, frozen=True):
    """The list of news overflowed, so some is missing: the leader must load a new snapshot."""


NewsItem = Queued | Ended | Gone | Worker | Linked | Resync


class UnfinishedTask(Item, frozen=True):
    """A task that is not final, as a snapshot for a new leader holds it."""

    id: str
    spec: str
    attempt: int
    after_ms: int
    created_ms: int
    deaths: str
    state: str
    worker: str
    place: str


class Snapshot(Item, frozen=True):
    """What a term begins with; `levels` alternates levels of priority and numbers of waiting tasks."""

    now_ms: int
    workers: tuple[str, ...]
    levels: tuple[str, ...] = ()


class SnapshotPage(Item, frozen=True):
    """Some unfinished tasks in one state; `last` is the task after which the next page begins, empty if there
    is none."""

    tasks: tuple[UnfinishedTask, ...]
    levels: tuple[str, ...]
    last_at: str
    last: str
