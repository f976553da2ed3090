"""Translates the manager's values to those of the core: a worker becomes a node, a task a request.

Pure, so the dispatcher, the overview and `explain` all get the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from gpu_orchestrator.api import session, task, task_gangs
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.strategies import SCORE_LABEL, SLOTS
from gpu_orchestrator.core.device import WHOLE, Device
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_MIB, within
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.request import Expression, GangTerms, Request, Shape, Term

HANDLER_LABEL = "gpu-orchestrator/handler."
POOL_LABEL, NO_POOL = "gpu-orchestrator/pool", "-"
"""Every worker has this label, so that a task without a pool is kept out of pools. No pool can be called
`-`."""
GANGS_LABEL = "gpu-orchestrator/gangs"
"""Workers that know gangs have it: others would not tell members of each other."""
VENDORLESS = "unknown"


class DeviceGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices of an attempt, as stored with the task: enough to account for it after a restart. `gang` is
    what a member of one is told."""

    devices: tuple[session.Given, ...] = ()
    memory_mib: int = 0
    exclusive: bool = False
    gang: task_gangs.Gang | None = None


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """How much of a device may be reserved: at most the part `threshold`, and never the last
    `headroom_mib`."""

    threshold: float = 0.8
    headroom_mib: int = 256


@dataclass(frozen=True, slots=True)
class Reserved:
    """Memory reserved on one device, and the part of it that its holders have not allocated yet. What loaded
    models hold that no task uses is `evictable_mib`."""

    mib: int = 0
    unallocated_mib: int = 0
    evictable_mib: int = 0


def free_mib(
    total_mib: int, memory: MemoryPolicy, reading: session.Reading | None, reserved: Reserved
) -> int:
    """Return the memory that can still be reserved: the smaller of our own accounting and the driver's
    reading. Memory used by other processes counts in both. Memory that is reserved but not yet allocated is
    free for the driver, but not for us; that of models which can be evicted is free for us alone."""
    if reading is None:
        return int(total_mib * memory.threshold) - reserved.mib
    by_accounting = int(total_mib * memory.threshold) - reserved.mib - reading.others_mib
    by_driver = reading.free_mib + reserved.evictable_mib - memory.headroom_mib - reserved.unallocated_mib
    return min(by_accounting, by_driver)


class ActiveAlert(msgspec.Struct, frozen=True):
    """An active alert, as the store keeps it."""

    device: int
    kind: str
    value: float
    message: str
    since: int


OPEN, HALF_OPEN = "open", "half"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker as stored. `left`: it ended as it was told to, so nobody expects it back. `circuit` is `OPEN`
    while it gets no tasks because too many failed there, `HALF_OPEN` while it gets one at a time, else
    empty."""

    hello: session.Hello
    epoch: int = 0
    online: bool = True
    left: bool = False
    cordoned: bool = False
    draining: bool = False
    cordoned_devices: frozenset[int] = frozenset()
    readings: tuple[session.Reading, ...] = ()
    alerts: tuple[ActiveAlert, ...] = ()
    score: float | None = None
    circuit: str = ""
    circuit_why: str = ""
    circuit_until_ms: int = 0
    api: str = ""
    connection: str = ""
    copies: tuple[session.Copy, ...] = ()
    cache: session.CacheCounts = session.CacheCounts()  # noqa: RUF009 - frozen
    reported_s: float = 0.0
    """When the readings and the copies were reported, by the store's clock."""


def shown_score(score: float | None) -> str:
    """Return the score as placement sees it; empty if there is none yet."""
    return "" if score is None else f"{score:.2f}"


def node_of(worker: WorkerState, memory: MemoryPolicy, reserved: dict[int, Reserved]) -> Node:
    """Return the worker as a node; `reserved` has the reserved memory of each device, by index."""
    hello = worker.hello
    readings = {reading.index: reading for reading in worker.readings}
    labels = {**hello.labels, **{HANDLER_LABEL + name: "true" for name in hello.task_types}}
    labels[POOL_LABEL] = hello.pool or NO_POOL
    if hello.address:
        labels[GANGS_LABEL] = "true"
    if score := shown_score(worker.score):
        labels[SCORE_LABEL] = score
    return node(
        hello.name,
        [
            _device(each, worker, memory, readings.get(each.index), reserved.get(each.index, Reserved()))
            for each in hello.devices
        ],
        resources={SLOTS: 1 if worker.circuit == HALF_OPEN else within(hello.max_concurrent, MOST_AMOUNT)},
        labels=labels,
        ready=worker.online,
        schedulable=not (worker.cordoned or worker.draining or worker.circuit == OPEN),
    )


def _device(
    each: session.Device,
    worker: WorkerState,
    memory: MemoryPolicy,
    reading: session.Reading | None,
    reserved: Reserved,
) -> Device:
    """The core itself subtracts reserved memory; `taken_mib` is all other memory that is not free."""
    offered = within(int(each.memory_mib * memory.threshold), MOST_MIB)
    free = free_mib(each.memory_mib, memory, reading, reserved)
    return Device(
        each.index,
        uuid=each.uuid,
        vendor=each.vendor or VENDORLESS,
        model=each.model,
        memory_mib=offered,
        taken_mib=within(offered - reserved.mib - free, MOST_MIB),
        healthy=not (reading and reading.problem) and each.index not in worker.cordoned_devices,
        island=each.island,
        numa=each.numa,
    )


@dataclass(frozen=True, slots=True)
class Hints:
    """What earlier attempts teach about the next: workers that it must not go to, and workers and devices
    that it goes to only if no other fits; `memory_mib` to reserve if that is more than the task asked for."""

    avoid: tuple[str, ...] = ()
    shun_workers: tuple[str, ...] = ()
    prefer_devices: tuple[int, ...] = ()
    memory_mib: int = 0


NO_HINTS = Hints()
PREFER_DEVICES = "preferIds"
"""The allocator that obeys `prefer_devices`."""


Sizes = Callable[[str], int]
"""Returns what a model takes on each device, in MiB; 0 if nobody knows."""


def no_sizes(_: str) -> int:
    return 0


def request_of(name: str, spec: TaskSpec, hints: Hints = NO_HINTS, sizes: Sizes = no_sizes) -> Request:
    """Return the task as a request; it ends before its timeout. Without `memory_mib` in the spec, and without
    a model of known size, the task gets whole devices."""
    if hints is NO_HINTS:  # whose hash would cost more than the rest of the call
        return Request(name, plain_shape(spec, sizes), spec.priority, spec.tenant, run_s=spec.timeout_s)
    plain = plain_shape(spec, sizes)
    memory_mib = max(plain.memory_mib, hints.memory_mib) if spec.gpus and not plain.exclusive else 0
    allocator = PREFER_DEVICES if hints.prefer_devices else ""
    shape = _shape(spec.task_type, spec.gpus, memory_mib, spec.vendor, spec.pool, _labels(spec), hints)
    asked = _for_model(shape, spec)
    return Request(name, asked, spec.priority, spec.tenant, allocator=allocator, run_s=spec.timeout_s)


def plain_shape(spec: TaskSpec, sizes: Sizes) -> Shape:
    """Return the shape of a task of which nothing was learnt yet."""
    if not spec.model and not spec.worker:
        return _plain_shape(spec)
    memory_mib = max(spec.memory_mib, sizes(spec.model) if spec.model else 0) if spec.gpus else 0
    shape = _shape(spec.task_type, spec.gpus, memory_mib, spec.vendor, spec.pool, _labels(spec))
    return _for_model(shape, spec)


def _plain_shape(spec: TaskSpec) -> Shape:
    return _shape(spec.task_type, spec.gpus, spec.memory_mib, spec.vendor, spec.pool, _labels(spec))


@lru_cache(maxsize=4096)
def _of_model(shape: Shape, model: str, worker: str) -> Shape:
    only = (Expression("metadata.name", "In", (worker,)),)
    affinity = tuple(replace(each, fields=(*each.fields, *only)) for each in shape.affinity or (Term(),))
    return replace(shape, model=model, affinity=affinity if worker else shape.affinity)


def _for_model(shape: Shape, spec: TaskSpec) -> Shape:
    return _of_model(shape, spec.model, spec.worker) if spec.model or spec.worker else shape


def spec_and_shape(text: str, sizes: Sizes) -> tuple[TaskSpec, Shape]:
    """Return a stored task's spec, and its shape without hints."""
    spec, shape = _cached_spec_and_shape(text)
    return spec, plain_shape(spec, sizes) if spec.model or spec.worker else shape


def _cached_spec_and_shape(text: str) -> tuple[TaskSpec, Shape]:
    return _short_spec_and_shape(text) if len(text) <= task.SHORT else _spec_and_shape(text)


def _spec_and_shape(text: str) -> tuple[TaskSpec, Shape]:
    spec = task.decode(text)
    return spec, _plain_shape(spec)


_short_spec_and_shape = lru_cache(maxsize=16384)(_spec_and_shape)
"""Cached, because thousands of tasks ask for the same; see `task.decode`."""


def _labels(spec: TaskSpec) -> tuple[tuple[str, str], ...]:
    asked = tuple(sorted(spec.worker_labels.items())) if spec.worker_labels else ()
    return ((GANGS_LABEL, "true"), *asked) if spec.gang else asked


def gang_terms(name: str, spec: TaskSpec) -> GangTerms | None:
    """Return the terms of the gang of this task; None if it is in none."""
    if spec.gang is None:
        return None
    return GangTerms(task_gangs.split(name)[0], spec.gang.size, spec.gang.same, spec.gang.near)


@lru_cache(maxsize=16384)
def _shape(
    task_type: str,
    gpus: int,
    memory_mib: int,
    vendor: str,
    pool: str,
    labels: tuple[tuple[str, str], ...],
    hints: Hints = NO_HINTS,
) -> Shape:
    """Build the shape. Cached, because thousands of tasks request the same."""
    shared = bool(gpus and memory_mib)
    avoid, shun = hints.avoid, hints.shun_workers
    return Shape(
        gpus=gpus,
        exclusive=not shared,
        milli=0 if shared else WHOLE,
        memory_mib=max(memory_mib, 1)
        if gpus
        else 0,  # so a device that other processes filled does not count as free
        vendor=vendor,
        resources=((SLOTS, 1),),
        labels=((HANDLER_LABEL + task_type, "true"), (POOL_LABEL, pool or NO_POOL), *labels),
        affinity=(_not_on(avoid),) if avoid else (),
        preferred=((1, _not_on(shun)),) if shun else (),
        prefer_ids=hints.prefer_devices,
    )


def _not_on(workers: tuple[str, ...]) -> Term:
    return Term(fields=(Expression("metadata.name", "NotIn", workers),))
