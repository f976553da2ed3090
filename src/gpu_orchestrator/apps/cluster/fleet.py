"""Workers as the store has them, read into values; and the cluster they make, for questions aside."""

from collections.abc import Iterable, Sequence

import msgspec

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.adapters.store.values import Remembered
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.cluster.policies import SLOTS
from gpu_orchestrator.apps.cluster.translate import Memory, Reserved, Seen, Spot, Standing, node_of
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.engine.events import Place

_hello = msgspec.json.Decoder(session.Hello)
_report = msgspec.json.Decoder(session.Report)
_spot = msgspec.json.Decoder(Spot)
_alerts = msgspec.json.Decoder(tuple[Standing, ...])
_devices = msgspec.json.Decoder(list[int])
_encode = msgspec.json.Encoder().encode

ENOUGH_TASKS = 10
"""So many must have ended on a worker before their success is held for or against it."""


def encode(value: msgspec.Struct) -> str:
    return _encode(value).decode()


def seen_of(row: Row) -> Seen:
    report = _report.decode(row["report"]) if row.get("report") else None
    done, failed = int(row.get("done", 0)), int(row.get("failed", 0))
    return Seen(
        hello=_hello.decode(row["spec"]),
        epoch=int(row["epoch"]),
        online=row["state"] == "online",
        cordoned=row.get("cordoned") == "1",
        draining=row.get("draining") == "1" or row.get("leaving") == "1",
        cordoned_devices=frozenset(_devices.decode(row.get("cordoned_devices") or "[]")),
        readings=report.readings if report else (),
        alerts=_alerts.decode(row.get("alerts") or "[]"),
        score=done / (done + failed) if done + failed >= ENOUGH_TASKS else None,
        api=row.get("api", ""),
        connection=row.get("connection", ""),
    )


def ram_used_mib(row: Row) -> int:
    return _report.decode(row["report"]).ram_used_mib if row.get("report") else 0


def placement_of(task: str, worker: str, spot: Spot) -> Placement:
    return Placement(
        task,
        worker,
        tuple(each.index for each in spot.devices),
        exclusive=spot.exclusive,
        milli=0,
        memory_mib=spot.memory_mib,
        resources=((SLOTS, 1),),
    )


def spot_of(place: Place, worker: Seen) -> Spot:
    placement, shape = place.placement, place.request.shape
    if not placement.devices:
        return Spot((), placement.memory_mib, exclusive=False)
    uuids = {each.index: each.uuid for each in worker.hello.devices}
    given = tuple(session.Given(index, uuids.get(index, "")) for index in placement.devices)
    exclusive = bool(shape.gpus) and shape.exclusive
    return Spot(given, 0 if exclusive else placement.memory_mib, exclusive)


def read_spot(text: str) -> Spot:
    return _spot.decode(text)


def milli_of(spot: Spot, worker: Seen, memory: Memory) -> int:
    """Thousandths of a GPU: a device counts whole, or by what is taken of the memory that it offers."""
    if spot.exclusive or not spot.devices:
        return WHOLE * len(spot.devices)
    offered = {each.index: int(each.memory_mib * memory.threshold) for each in worker.hello.devices}
    parts = (min(spot.memory_mib / max(offered.get(each.index, 0), 1), 1.0) for each in spot.devices)
    return round(WHOLE * sum(parts))


def reserved_on(worker: Seen, memory: Memory, held: Iterable[Placement]) -> dict[int, Reserved]:
    """What is promised on each device of a worker, and what of it its holders have not allocated yet."""
    offered = {each.index: int(each.memory_mib * memory.threshold) for each in worker.hello.devices}
    has = {(reading.index, held.task): held.used_mib for reading in worker.readings for held in reading.held}
    found: dict[int, Reserved] = {}
    for placement in held:
        for index in placement.devices:
            before = found.get(index, Reserved())
            mib = offered.get(index, 0) if placement.exclusive else placement.memory_mib
            waits = max(mib - has.get((index, placement.key), 0), 0)
            found[index] = Reserved(before.mib + mib, before.unallocated_mib + waits)
    return found


def message_of(
    task: str, attempt: int, spec: TaskSpec, spot: Spot, parameters: str, correlation: str
) -> session.Assign:
    return session.Assign(
        task,
        attempt,
        spec.task_type,
        msgspec.Raw(parameters),
        model_name=spec.model_name,
        devices=spot.devices,
        memory_mib=spot.memory_mib,
        exclusive=spot.exclusive,
        soft_limit_s=spec.soft_limit_s,
        timeout_s=spec.timeout_s,
        correlation_id=correlation,
    )


def misfit(hello: session.Hello) -> str:
    """Why such a worker cannot be counted, or nothing. Found out by counting it, before anybody else does."""
    try:
        Cluster().set_node(node_of(Seen(hello), Memory(), {}))
    except (InvalidRequest, OverflowError) as error:
        return str(error)
    return ""


async def load(store: Store, names: Sequence[str]) -> dict[str, Seen]:
    rows = await store.workers.fetch(names)
    return {row["name"]: seen_of(row) for row in rows if row and "spec" in row}


def cluster_of(workers: dict[str, Seen], memory: Memory, tasks: Iterable[Remembered]) -> Cluster:
    """The cluster with all that runs on it."""
    held: dict[str, list[Placement]] = {name: [] for name in workers}
    for task in tasks:
        if task.worker in held and task.place:
            held[task.worker].append(placement_of(task.id, task.worker, read_spot(task.place)))
    cluster = Cluster()
    for name, worker in workers.items():
        cluster.set_node(node_of(worker, memory, reserved_on(worker, memory, held[name])))
        for placement in held[name]:
            cluster.account(placement)
    return cluster
