"""Decodes rows of the store into values, and builds a cluster of them for queries outside the dispatcher."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from gpu_orchestrator.adapters.store.records import UnfinishedTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import (
    ActiveAlert,
    DeviceGrant,
    MemoryPolicy,
    Reserved,
    WorkerState,
    node_of,
)
from gpu_orchestrator.apps.manager.fleet.strategies import SLOTS
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.engine.events import Place
from gpu_orchestrator.engine.models import PIN
from gpu_orchestrator.engine.reservation_search import is_room

_hello = msgspec.json.Decoder(session.Hello)
_report = msgspec.json.Decoder(session.Report)
_grant = msgspec.json.Decoder(DeviceGrant)
_alerts = msgspec.json.Decoder(tuple[ActiveAlert, ...])
_devices = msgspec.json.Decoder(list[int | str])
_encode = msgspec.json.Encoder().encode

HELLOS = 2048
"""A worker sends its hello once, and every process decodes it often: keep this many decoded."""
NONE: frozenset[int] = frozenset()
ENOUGH_TASKS = 10
"""At least this many tasks must have ended on a worker before its success rate counts."""


def encode(value: msgspec.Struct) -> str:
    return _encode(value).decode()


@lru_cache(maxsize=HELLOS)
def _hello_of(text: str) -> session.Hello:
    return _hello.decode(text)


def score_of(done: int, failed: int) -> float | None:
    """Return the part of a worker's tasks that succeeded; None while too few have ended."""
    return done / (done + failed) if done + failed >= ENOUGH_TASKS else None


def worker_state_of(row: Row) -> WorkerState:
    hello = _hello_of(row["spec"])
    report = _report.decode(row["report"]) if row.get("report") else None
    done, failed = int(row.get("done", 0)), int(row.get("failed", 0))
    return WorkerState(
        hello=hello,
        epoch=int(row["epoch"]),
        online=row["state"] == "online",
        left=row["state"] == "offline" and row.get("leaving") == "1",
        cordoned=row.get("cordoned") == "1",
        draining=row.get("draining") == "1" or row.get("leaving") == "1",
        cordoned_devices=_cordoned(hello, row.get("cordoned_devices", "")),
        readings=report.readings if report else (),
        alerts=_alerts.decode(row["alerts"]) if row.get("alerts") else (),
        score=score_of(done, failed),
        circuit=row.get("circuit", ""),
        circuit_why=row.get("circuit_why", ""),
        circuit_until_ms=int(row.get("circuit_until") or 0),
        api=row.get("api", ""),
        connection=row.get("connection", ""),
        copies=_known_copies(hello, report.copies) if report and hello.model_types else (),
        cache=report.cache if report else session.CacheCounts(),
        reported_s=int(row.get("reported") or 0) / 1000,
    )


def _known_copies(hello: session.Hello, copies: Iterable[session.Copy]) -> tuple[session.Copy, ...]:
    """Return the copies on devices that the worker has, with no more memory than these: a report may say
    anything, and what it says is counted."""
    sizes = {each.index: each.memory_mib for each in hello.devices}
    return tuple(
        msgspec.structs.replace(each, used_mib=most) if each.used_mib > most else each
        for each in copies
        if sizes.keys() >= set(each.devices)
        for most in (min((sizes[index] for index in each.devices), default=0),)
    )


def _cordoned(hello: session.Hello, stored: str) -> frozenset[int]:
    """Return the indexes of cordoned devices, which are stored by UUID; older versions stored indexes."""
    if stored in ("", "[]"):
        return NONE
    chosen = set(_devices.decode(stored))
    return frozenset(each.index for each in hello.devices if each.index in chosen or each.uuid in chosen)


def ram_used_mib(row: Row) -> int:
    return _report.decode(row["report"]).ram_used_mib if row.get("report") else 0


def placement_of(task: str, worker: str, grant: DeviceGrant) -> Placement:
    return Placement(
        task,
        worker,
        tuple(each.index for each in grant.devices),
        exclusive=grant.exclusive,
        milli=0,
        memory_mib=grant.memory_mib,
        resources=((SLOTS, 1),),
    )


def placements_on(worker: str, held: Iterable[tuple[str, str]]) -> list[Placement]:
    """Return the placements of attempts, given as ids and grants as JSON."""
    return [placement_of(task, worker, read_grant(place)) for task, place in held if place]


def grant_of(place: Place, worker: WorkerState) -> DeviceGrant:
    placement, shape = place.placement, place.request.shape
    if not placement.devices:
        return DeviceGrant((), placement.memory_mib, exclusive=False)
    known = {each.index: each for each in worker.hello.devices}
    given = tuple(_given(index, known.get(index)) for index in placement.devices)
    exclusive = bool(shape.gpus) and shape.exclusive
    return DeviceGrant(given, 0 if exclusive else placement.memory_mib, exclusive)


def _given(index: int, device: session.Device | None) -> session.Given:
    return session.Given(index, device.uuid, device.model) if device else session.Given(index, "")


def read_grant(text: str) -> DeviceGrant:
    return _grant.decode(text)


def milli_of(grant: DeviceGrant, worker: WorkerState, memory: MemoryPolicy) -> int:
    """Return thousandths of a GPU: an exclusive device counts whole, a shared one by its part of the
    memory."""
    if grant.exclusive or not grant.devices:
        return WHOLE * len(grant.devices)
    offered = {each.index: int(each.memory_mib * memory.threshold) for each in worker.hello.devices}
    parts = (min(grant.memory_mib / max(offered.get(each.index, 0), 1), 1.0) for each in grant.devices)
    return round(WHOLE * sum(parts))


def reserved_on(worker: WorkerState, memory: MemoryPolicy, held: Iterable[Placement]) -> dict[int, Reserved]:
    """Return the memory reserved on each device of a worker, the part that its holders have not allocated,
    and what loaded models hold for none of them."""
    offered = {each.index: int(each.memory_mib * memory.threshold) for each in worker.hello.devices}
    has = {(reading.index, held.task): held.used_mib for reading in worker.readings for held in reading.held}
    found: dict[int, Reserved] = {}
    keys = set()
    for placement in held:
        if is_room(placement.key):
            continue  # kept for a task that waits, beside those that hold it
        keys.add(placement.key)
        for index in placement.devices:
            before = found.get(index, Reserved())
            mib = offered.get(index, 0) if placement.exclusive else placement.memory_mib
            waits = max(mib - has.get((index, placement.key), 0), 0)
            found[index] = Reserved(before.mib + mib, before.unallocated_mib + waits)
    for copy in worker.copies:
        # A task that the report names may have ended since. Pinned copies count as well: a placement of its
        # own holds its memory.
        if copy.task not in keys:
            for index in copy.devices:
                before = found.get(index, Reserved())
                found[index] = replace(before, evictable_mib=before.evictable_mib + copy.used_mib)
    return found


def pins_on(worker: WorkerState, held: Iterable[Placement]) -> list[Placement]:
    """Return a placement for each pinned copy that no task uses: it holds the copy's memory."""
    keys = {each.key for each in held}
    return [
        Placement(
            f"{PIN}{worker.hello.name}:{copy.number}",
            worker.hello.name,
            copy.devices,
            exclusive=False,
            milli=0,
            memory_mib=copy.used_mib,
        )
        for copy in worker.copies
        if copy.pinned and copy.is_loaded and copy.task not in keys
    ]


def reserved_mib(worker: WorkerState, memory: MemoryPolicy, places: Iterable[str]) -> dict[int, int]:
    """Return the memory reserved on each device of a worker, given the grants of its attempts as JSON: the
    first part of what `reserved_on` returns, without a placement for each of them."""
    found: dict[int, int] = {}
    for grant in map(read_grant, places):
        for each in grant.devices:
            mib = _offered_mib(worker, each.index, memory) if grant.exclusive else grant.memory_mib
            found[each.index] = found.get(each.index, 0) + mib
    return found


def _offered_mib(worker: WorkerState, index: int, memory: MemoryPolicy) -> int:
    sizes = (each.memory_mib for each in worker.hello.devices if each.index == index)
    return int(next(sizes, 0) * memory.threshold)


def message_of(
    task: str,
    attempt: int,
    spec: TaskSpec,
    grant: DeviceGrant,
    parameters: str,
    correlation: str,
    models: ModelBook,
) -> session.Assign:
    return session.Assign(
        task,
        attempt,
        spec.task_type,
        msgspec.Raw(parameters),
        model_name=spec.model_name,
        devices=grant.devices,
        memory_mib=grant.memory_mib,
        exclusive=grant.exclusive,
        soft_limit_s=spec.soft_limit_s,
        timeout_s=spec.timeout_s,
        correlation_id=correlation,
        owner=spec.tenant,
        model=models.message(spec),
        only_load=spec.only_load,
        gang=grant.gang,
    )


def misfit(hello: session.Hello) -> str:
    """Return why a worker with this hello cannot be represented as a node, or an empty string. Tries it on an
    empty cluster, before the worker is stored and every process has to load it."""
    try:
        Cluster().set_node(node_of(WorkerState(hello), MemoryPolicy(), {}))
    except (InvalidRequest, OverflowError) as error:
        return str(error)
    return ""


async def load(store: Store, names: Sequence[str]) -> dict[str, WorkerState]:
    rows = await store.workers.fetch(names)
    return {row["name"]: worker_state_of(row) for row in rows if row and "spec" in row}


def cluster_of(
    workers: dict[str, WorkerState], memory: MemoryPolicy, tasks: Iterable[UnfinishedTask]
) -> Cluster:
    """Return the cluster with everything that runs on it."""
    held: dict[str, list[Placement]] = {name: [] for name in workers}
    for task in tasks:
        if task.worker in held and task.place:
            held[task.worker].append(placement_of(task.id, task.worker, read_grant(task.place)))
    cluster = Cluster()
    for name, worker in workers.items():
        held[name] += pins_on(worker, held[name])
        cluster.set_node(node_of(worker, memory, reserved_on(worker, memory, held[name])))
        for placement in held[name]:
            cluster.account(placement)
    return cluster
