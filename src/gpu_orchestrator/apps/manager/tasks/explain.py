"""Explains why a task waits: for every worker and device the reason that it does not fit, and where the task
would go. Uses the filters and the policy that place tasks.
"""

import asyncio
from collections.abc import Mapping

import numpy as np

from gpu_orchestrator.api import session
from gpu_orchestrator.api.units import MIB, show_memory
from gpu_orchestrator.apps.manager import task_schema
from gpu_orchestrator.apps.manager.fleet import words
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import compile_filters
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.offers import Offers
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine.models import PIN
from gpu_orchestrator.engine.reservation_search import is_room

AT_ONCE = 50


async def verdicts(
    shape: Shape, cluster: Cluster, workers: Mapping[str, WorkerState], *, named: bool
) -> list[task_schema.WorkerVerdict]:
    """Return the verdict of each worker that has not left, some at a time: other requests are served in
    between. Nobody else may change the cluster meanwhile."""
    found: list[task_schema.WorkerVerdict] = []
    for worker in [each for each in workers.values() if not each.left]:
        found.append(worker_verdict(shape, cluster, worker, named=named))
        if len(found) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def worker_verdict(
    shape: Shape, cluster: Cluster, worker: WorkerState, *, named: bool
) -> task_schema.WorkerVerdict:
    """Return whether the worker fits and why not. `named` lists blocking tasks of any owner by id."""
    row = cluster.row(worker.hello.name)
    only = np.array([row])
    why = words.lacks(
        each.lack(cluster, row)
        for each in compile_filters(shape, cluster.inventory)
        if not each.passes(cluster, only)[0]
    )
    devices = [_device(shape, cluster, worker, at, named=named) for at in range(len(worker.hello.devices))]
    return task_schema.WorkerVerdict(
        worker_id=worker.hello.name,
        fits=not why,
        why=why,
        devices=devices,
        sharing=worker.hello.sharing or session.ACCOUNTED,
    )


def score_reasons(shape: Shape, cluster: Cluster, policy: Policy, worker: str) -> list[str]:
    """Return the score and weight of each of the policy's opinions for the chosen worker."""
    only = np.array([cluster.row(worker)])
    offers = Offers(cluster, Kind(shape, cluster.inventory), policy.allocate, only, {})
    return [
        f"{opinion.__name__.replace('_', ' ')}: {float(opinion(offers)[0]):.2f} × {weight:g}"
        for weight, opinion in policy.strategy.opinions
    ]


def _device(
    shape: Shape, cluster: Cluster, worker: WorkerState, at: int, *, named: bool
) -> task_schema.DeviceVerdict:
    row, device = cluster.row(worker.hello.name), worker.hello.devices[at]
    free = max(int(cluster.usage.free_mib[row, at]), 0)
    kind = Kind(shape, cluster.inventory)
    fits = bool(shape.gpus) and bool(kind.free(cluster, np.array([row]))[0, at])
    return task_schema.DeviceVerdict(
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        fits=fits,
        why="" if fits else _why(shape, cluster, worker, device, named=named),
        memory_free=show_memory(free),
        memory_free_bytes=free * MIB,
    )


def _why(shape: Shape, cluster: Cluster, worker: WorkerState, device: session.Device, *, named: bool) -> str:
    row, at = cluster.row(worker.hello.name), worker.hello.devices.index(device)
    free = max(int(cluster.usage.free_mib[row, at]), 0)
    reading = next((each for each in worker.readings if each.index == device.index), None)
    held = [p for p in cluster.held_on(worker.hello.name).values() if device.index in p.devices]
    if not shape.gpus:
        return "the task requests no GPU"
    if device.index in worker.cordoned_devices:
        return "it is cordoned"
    if reading and reading.problem:
        return f"it is not healthy: {reading.problem}"
    if shape.vendor and device.vendor != shape.vendor:
        return f"its vendor is {device.vendor}; the task requests {shape.vendor}"
    if any(is_room(each.key) for each in held):
        return "it is kept for another task, which smaller ones would pass"
    if shape.exclusive and held:
        return f"in use by {_holders(held, named=named)} (this task wants the whole GPU)"
    if any(placement.exclusive for placement in held):
        return f"in use by {_holders(held, named=named)}, which has the whole GPU"
    return _sizes(shape, device, free, sum(placement.memory_mib for placement in held), reading)


def _sizes(
    shape: Shape, device: session.Device, free: int, reserved: int, reading: session.Reading | None
) -> str:
    """Say what is free and what is missing; in MiB where rounded sizes would look equal."""
    wanted, left = show_memory(shape.memory_mib), show_memory(free)
    if wanted == left:
        wanted, left = f"{shape.memory_mib} MiB", f"{free} MiB"
    others = f", {show_memory(reading.others_mib)} used by others" if reading and reading.others_mib else ""
    return (
        f"{left} of {show_memory(device.memory_mib)} can be reserved; the task wants {wanted} "
        f"({show_memory(reserved)} reserved by tasks{others})"
    )


def _holders(held: list[Placement], *, named: bool) -> str:
    if pins := [each for each in held if each.key.startswith(PIN)]:
        others = [each for each in held if each not in pins]
        model = f"{len(pins)} pinned model{'s' if len(pins) > 1 else ''}"
        return f"{model} and {_holders(others, named=named)}" if others else model
    if named:
        return ", ".join(sorted(placement.key for placement in held))
    return f"{len(held)} task{'s' if len(held) > 1 else ''}"
