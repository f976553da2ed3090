"""A task as it is stored and dispatched: what to run and what it needs, without its parameters.

Written by the API when a task is submitted; the dispatcher turns it into a request for the core.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from gpu_orchestrator.api.task_gangs import GangSpec

State = Literal["scheduled", "queued", "assigned", "running", "completed", "failed", "cancelled", "dead"]
STATES: tuple[State, ...] = get_args(State)
WAITING: frozenset[str] = frozenset({"scheduled", "queued"})
ACTIVE: frozenset[str] = frozenset({"assigned", "running"})
FINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled", "dead"})

PRIORITIES = {"low": 25, "normal": 50, "high": 75, "critical": 90}
"""Names of priorities from 0 to 100. At `high` and at `critical` a new band begins: a task below it never
goes first, however long it waited."""


_LEVELS = tuple(PRIORITIES.values())[1:]


def level(priority: int) -> int:
    """Return 0 for low to 3 for critical: waiting tasks are counted by it."""
    return bisect_right(_LEVELS, priority)


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """`memory_mib` is reserved on each of `gpus` devices; 0 asks for the devices whole. A worker must have
    `worker_labels` and be in `pool`; without `pool`, in none. `not_before` and `expires` are as the caller
    wrote them, so that a repeated submission is equal; the store has the moments. `result_ttl_s` is how
    long the task is kept after its end; None as long as others. `takes_results`: its parameters refer to
    results of its dependencies. `model` is what its handler loads and keeps, empty for a task type that loads
    nothing; with `only_load`, nothing more is done. `worker` is where it must run, empty for anywhere. For
    `cache_s`, its result answers for tasks with the same `cache_key`. `gang` is set for a member of one, and
    the same in all of them."""

    task_type: str
    model_name: str = ""
    priority: int = 50
    gpus: int = 1
    memory_mib: int = 0
    vendor: str = ""
    timeout_s: float = 300.0
    soft_limit_s: float = 0.0
    labels: dict[str, str] = {}
    tenant: str = ""
    callback_url: str = ""
    worker_labels: dict[str, str] = {}
    pool: str = ""
    not_before: str = ""
    expires: str = ""
    result_ttl_s: float | None = None
    takes_results: bool = False
    model: str = ""
    only_load: bool = False
    worker: str = ""
    cache_key: str = ""
    cache_s: float = 0.0
    gang: GangSpec | None = None


SHORT = 500
"""Longer ones have labels, which are seldom equal and would fill the cache."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TaskSpec)


def encode(spec: TaskSpec) -> str:
    return _encoder.encode(spec).decode()


def decode(text: str | bytes) -> TaskSpec:
    return _decode_short(text) if len(text) <= SHORT else _decoder.decode(text)


@lru_cache(maxsize=16384)
def _decode_short(text: str | bytes) -> TaskSpec:
    """Cached, because thousands of tasks ask for the same."""
    return _decoder.decode(text)
