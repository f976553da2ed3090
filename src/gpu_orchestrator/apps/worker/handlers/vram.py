"""`vram`: allocates device memory, fills, holds, checks and frees it; shows that memory is accounted for.

`{"mib": 1024, "hold_s": 2}` allocates that on each device of the task; without `mib`, what was reserved.
"""

from typing import Annotated

import msgspec

from gpu_orchestrator.adapters.gpus import memory
from gpu_orchestrator.apps.worker.task import BadParameters, Task

WORD = 0x5EED5EED


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mib: Annotated[int, msgspec.Meta(ge=1)] | None = None
    hold_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class DamagedMemory(Exception):
    """The words read back differ from those written."""

    spends_runner = True


def handle(task: Task) -> dict[str, int]:
    parameters = task.parameters(Parameters)
    mib = parameters.mib or task.memory_mib
    devices = memory.visible()
    if not devices.count() or not mib:
        raise BadParameters("a vram task needs a device and an amount: ask for resources.gpus and give mib")
    blocks: list[memory.Block] = []
    try:
        for device in range(devices.count()):
            blocks.append(devices.allocate(device, mib))
            blocks[-1].fill(WORD + device)
        task.progress(f"holding {mib} MiB on each of {devices.count()} devices")
        task.sleep(parameters.hold_s)
        _check(blocks)
    finally:
        for block in blocks:
            block.free()
    return {"mib": mib, "devices": devices.count()}


def _check(blocks: list[memory.Block]) -> None:
    for device, block in enumerate(blocks):
        if not block.holds(WORD + device):
            raise DamagedMemory(f"device {device} returned other words than those written")
