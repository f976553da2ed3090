"""Workers as `GET /workers` shows them. What did not change since it was shown last is neither decoded nor
encoded again: of a thousand workers with eight devices that would take most of the time of a request.

The route `http/routes/workers.py` calls it.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import cast

import msgspec

from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.adapters.store.workers import HeldRow
from gpu_orchestrator.apps.manager import schema, views
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Known:
    """A worker and its GPUs as JSON, as they follow from these texts of the store."""

    row: tuple[str | None, ...]
    held: tuple[str, ...]
    worker: WorkerState
    gpus: msgspec.Raw


class WorkerList:
    """Keeps one entry for each worker that was shown. `keep_only` drops those that are gone."""

    def __init__(self, memory: MemoryPolicy) -> None:
        self._memory = memory
        self._known: dict[str, _Known] = {}

    def keep_only(self, names: Container[str]) -> None:
        self._known = {name: each for name, each in self._known.items() if name in names}

    def shown(self, row: Row, holding: HeldRow) -> tuple[schema.WorkerInfo, WorkerState]:
        known = self._of(row, holding)
        # The response encodes what is here, and these are GPUs that are encoded already.
        gpus = cast("list[schema.GpuInfo]", known.gpus)
        return schema.WorkerInfo(**views.worker_fields(row, known.worker), gpu_info=gpus), known.worker

    def _of(self, row: Row, holding: HeldRow) -> _Known:
        texts, known = rows.texts_of(row), self._known.get(row["name"])
        if known is not None and known.row == texts and known.held == holding.held:
            return known
        worker = rows.worker_state_of(row)
        places = (place for _, place in holding.placements() if place)
        reserved = rows.reserved_mib(worker, self._memory, places) if holding.held else {}
        gpus = msgspec.Raw(_encode(views.gpus(worker, reserved)))
        known = self._known[row["name"]] = _Known(texts, holding.held, worker, gpus)
        return known
