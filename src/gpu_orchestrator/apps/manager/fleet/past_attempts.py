"""What earlier attempts of a task teach about the next one: where it should not go, and how much to reserve.

Pure. The dispatcher, `explain` and the reasons in lists call it, so all of them judge the same request.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet.nodes import NO_HINTS, Hints, MemoryPolicy, WorkerState

MORE = 1.5
"""After an attempt ran out of memory, the next reserves this many times as much."""


class Death(msgspec.Struct, frozen=True):
    """An attempt that ended badly, as the store wrote it down. `reserved_mib` is 0 for whole devices."""

    worker: str
    kind: str = ""
    devices: tuple[int, ...] = ()
    reserved_mib: int = 0
    used_mib: int = 0

    @property
    def is_memory(self) -> bool:
        return self.kind == "memory"


_decode = msgspec.json.Decoder(tuple[Death, ...]).decode


def deaths_of(text: str) -> tuple[Death, ...]:
    return _decode(text) if text else ()


def hints(
    spec: TaskSpec, deaths: tuple[Death, ...], workers: Mapping[str, WorkerState], memory: MemoryPolicy
) -> Hints:
    """Return what to avoid. Workers that died, or whose runner did, are excluded if another worker that is
    online could take the task. Where memory ran out, the task goes only if no other place fits: the same
    device may be the only one, and with a larger reservation it may do."""
    if not deaths:
        return NO_HINTS
    able = [worker for worker in workers.values() if worker.online and could_take(worker, spec)]
    # A model that did not fit would not fit there the next time: idle ones had to make room for it.
    lethal = tuple(sorted({death.worker for death in deaths if spec.model or not death.is_memory}))
    short = [death for death in deaths if death.is_memory]
    has_other = any(worker.hello.name not in lethal for worker in able)
    return Hints(
        avoid=lethal if has_other else (),
        shun_workers=tuple(sorted({death.worker for death in short})),
        prefer_devices=_other_devices(short, able),
        memory_mib=_more_mib(short, able, memory),
    )


def has_elsewhere(
    spec: TaskSpec,
    deaths: tuple[Death, ...],
    worker: str,
    devices: tuple[int, ...],
    workers: Mapping[str, WorkerState],
) -> bool:
    """Return True if a task of a model could go to other devices than these, and than those on which memory
    ran out before."""
    gone = {death.worker for death in deaths if death.is_memory} | {worker}
    if any(
        each.online and each.hello.name not in gone and could_take(each, spec) for each in workers.values()
    ):
        return True
    here = workers.get(worker)
    failed = {index for death in deaths if death.worker == worker for index in death.devices} | {*devices}
    return here is not None and len([each for each in here.hello.devices if each.index not in failed]) >= max(
        spec.gpus, 1
    )


def could_take(worker: WorkerState, spec: TaskSpec) -> bool:
    """Return True if the worker is of the right kind: task type, pool, labels and number of devices."""
    hello = worker.hello
    return (
        spec.task_type in hello.task_types
        and spec.pool == hello.pool
        and spec.worker_labels.items() <= hello.labels.items()
        and spec.gpus <= len(hello.devices)
    )


def _other_devices(short: list[Death], able: Iterable[WorkerState]) -> tuple[int, ...]:
    """Return the devices on which memory did not run out; empty if there are none. An index is taken to fail
    on every worker: a worker on which it did not is preferred anyway."""
    failed = {index for death in short for index in death.devices}
    known = {device.index for worker in able for device in worker.hello.devices}
    return tuple(sorted(known - failed)) if failed else ()


def _more_mib(short: list[Death], able: Iterable[WorkerState], memory: MemoryPolicy) -> int:
    """Return what to reserve after memory ran out: more than before and than was measured, but no more than
    the largest device offers; else the task would wait forever."""
    before = max(
        (max(death.reserved_mib, death.used_mib) for death in short if death.reserved_mib), default=0
    )
    sizes = [device.memory_mib for worker in able for device in worker.hello.devices]
    return min(int(before * MORE), int(max(sizes, default=0) * memory.threshold)) if before else 0
