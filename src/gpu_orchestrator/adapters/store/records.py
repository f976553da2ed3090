"""What goes into the scripts and comes out of them: arrays of msgpack, with names here."""

from enum import Enum
from typing import Literal

import msgspec

Fence = int
"""A leader's number; 0 for who does not lead. A later leader has a higher one."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """Base: travels as an array, fields in order."""


class NewTask(Item, frozen=True):
    """`spec` and `params` are JSON. `idempotency` names the wish across repeated submissions; empty: none.
    `level` is 0 to 3 for a low, normal, high or critical priority."""

    id: str
    spec: str
    params: str
    retries: int = 3
    idempotency: str = ""
    correlation: str = ""
    tenant: str = ""
    level: int = 1


class Unit(Item, frozen=True):
    """What one request asks for, taken whole or not: `tasks` by level, where so many may wait of this owner
    and at each level, and so many GPU milliseconds may have been used today; 0 is any number."""

    owner: str
    most_queued: int
    most_at_level: int
    most_gpu_ms: int
    tasks: tuple[int, ...] = (0, 0, 0, 0)


ANY_NUMBER = Unit("", 0, 0, 0)


class Taken(Item, frozen=True):
    """The task is in the store: a new one (`fresh` is 1), or the one that its idempotency key named already
    (0)."""

    id: str
    created_ms: int
    fresh: int = 1


class KeyConflict(Item, frozen=True):
    """The idempotency key belongs to this task, which asks for something else."""

    id: str


class Limit(Enum):
    """What a request would exceed; the values are the codes of the scripts."""

    OWNER_QUEUE = -2
    LEVEL_QUEUE = -3
    DAY_BUDGET = -4


class NoRoom(Item, frozen=True):
    """Nothing of the request was taken. `retry_after_ms` is until the next day for `DAY_BUDGET`, else 0: the
    store does not know when a queue gets shorter."""

    limit: Limit
    retry_after_ms: int = 0


Submitted = Taken | KeyConflict | NoRoom


class Assignment(Item, frozen=True):
    """`attempt` counts the runs so far; `place` is JSON for the worker; `milli` are the thousandths of a GPU
    that it holds."""

    id: str
    attempt: int
    worker: str
    epoch: int
    place: str
    milli: int = 0


class Assigned(Item, frozen=True):
    """The worker may have the task; `parameters` is JSON."""

    parameters: str
    correlation: str


class Moved(Enum):
    """What was no longer as the leader knew it; the values are the words of the scripts."""

    TASK = "task moved on"
    WORKER = "worker moved on"


class NotAssigned(Item, frozen=True):
    moved: Moved


Given = Assigned | NotAssigned


OutcomeKind = Literal["done", "failed", "died", "refused", "cancelled"]


class Outcome(Item, frozen=True):
    """`payload` is the result or error as JSON, or evidence in words. `wanted`: somebody waits for it."""

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


class Note(Item, frozen=True):
    """`began_ms` is how long ago the attempt began, -1 when this is only a line of progress."""

    id: str
    attempt: int
    worker: str
    epoch: int
    began_ms: int = -1
    line: str = ""


class Newcomer(Item, frozen=True):
    name: str
    instance: str
    spec: str
    api: str
    connection: str
    resume_epoch: int = 0


class Renewal(Item, frozen=True):
    name: str
    epoch: int
    connection: str


class Active(Item, frozen=True):
    """An attempt that a worker has according to the store."""

    id: str
    attempt: int
    cancel: int


class Departure(Item, frozen=True):
    name: str
    epoch: int
    why: str


class Over(Item, frozen=True):
    """A lease that is over; `suspect` is 1 where the connection was lost before."""

    name: str
    epoch: int
    suspect: int


class Leading(Item, frozen=True):
    """`fence` is 0 for who does not lead; `apis` are the processes that strive to, by their owners' names."""

    fence: Fence
    now_ms: int
    owner: str
    workers: int
    over: tuple[Over, ...]
    apis: tuple[str, ...]


# --- news for the leader -----------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What changed in the store, told to the leader; the first item is the name of the class."""


class Queued(News, frozen=True):
    """New, or back in the queue; not to be run before `after_ms`. `deaths` is the evidence so far, JSON."""

    id: str
    spec: str
    attempt: int
    after_ms: int
    created_ms: int
    deaths: str = ""


class Ended(News, frozen=True):
    """What this attempt had is free; it used so many GPU milliseconds."""

    id: str
    worker: str
    attempt: int
    gpu_ms: int = 0


class Gone(News, frozen=True):
    """A queued task that is not to be run any more."""

    id: str


class Worker(News, frozen=True):
    """A worker's row as it is now, fields and values in turn; empty when it was forgotten."""

    name: str
    row: tuple[str, ...]


class Resync(News, frozen=True):
    """More happened than was told: look at everything anew."""


Told = Queued | Ended | Gone | Worker | Resync


class Remembered(Item, frozen=True):
    """A task that is not final, as a new leader finds it."""

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
    now_ms: int
    workers: tuple[str, ...]
    tasks: tuple[Remembered, ...]
