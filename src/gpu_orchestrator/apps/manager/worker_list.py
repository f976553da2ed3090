"""Workers as `GET /workers` shows them. What did not change since it was shown last is neither read, decoded
nor encoded again: of a thousand workers with eight devices that would take most of the time of a request.

The route `http/routes/workers.py` calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.adapters.store.workers import HeldRow, Stamp, Workers
from gpu_orchestrator.apps.manager import schema, views
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Known:
    """A worker as it was when the store gave it this stamp, with its GPUs as JSON. The stamp may be older
    than the rest, never newer."""

    stamp: tuple[str, str, int, int]
    state: str
    worker: WorkerState
    gpus: msgspec.Raw


class WorkerList:
    """Keeps one entry for each worker that was shown and is still there."""

    def __init__(self, stored: Workers, memory: MemoryPolicy) -> None:
        self._stored, self._memory = stored, memory
        self._known: dict[str, _Known] = {}

    async def shown(self, names: Sequence[str]) -> list[tuple[schema.WorkerInfo, WorkerState]]:
        """Return those of these workers that the store knows, as they are now."""
        stamps = await self._stored.stamps(names)
        known = {name: each for name, each in self._known.items() if _is_current(each, stamps.get(name))}
        outdated = [name for name in stamps if name not in known]
        async for part in self._stored.holding(outdated):
            found = [(row, each) for row, each in part if "spec" in row]
            known.update((row["name"], self._read(row, each, stamps[row["name"]])) for row, each in found)
        self._known = known
        return [
            (_info(known[name], stamp), known[name].worker) for name, stamp in stamps.items() if name in known
        ]

    def _read(self, row: Row, holding: HeldRow, stamp: Stamp) -> _Known:
        worker = rows.worker_state_of(row)
        places = (place for _, place in holding.placements() if place)
        reserved = rows.reserved_mib(worker, self._memory, places) if holding.held else {}
        gpus = msgspec.Raw(_encode(views.gpus(worker, reserved)))
        return _Known(_key(stamp), row["state"], worker, gpus)


def _is_current(known: _Known, stamp: Stamp | None) -> bool:
    return stamp is not None and known.stamp == _key(stamp)


def _key(stamp: Stamp) -> tuple[str, str, int, int]:
    return stamp.row, stamp.held, stamp.done, stamp.failed


def _info(known: _Known, stamp: Stamp) -> schema.WorkerInfo:
    # The response encodes what is here, and these are GPUs that are encoded already.
    gpus = cast("list[schema.GpuInfo]", known.gpus)
    fields = views.worker_fields(known.worker, known.state, stamp.active, stamp.seen)
    return schema.WorkerInfo(**fields, gpu_info=gpus)
