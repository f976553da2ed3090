"""Keep this process's book of models in step with the store, and write down what workers measured.

It reads the models at once when another process publishes a change, and checks their version every second in
case that message is lost. The leader measures: it gets the report of every worker.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import msgspec
import structlog

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.models import ModelRow, StoredModels
from gpu_orchestrator.apps.manager.fleet.models import KnownModel, ModelBook, known_model
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState

POLL_S = 1.0
log = structlog.get_logger()


class ModelSync:
    """Calls `changed` after every change of the book."""

    def __init__(self, stored: StoredModels, book: ModelBook, changed: Callable[[], None]) -> None:
        self._stored, self._book, self._changed = stored, book, changed
        self._version = -1
        self._wake = asyncio.Event()
        self._learnt: dict[str, str] = {}

    def wake(self) -> None:
        self._wake.set()

    async def refresh(self) -> None:
        """Read the models if their version has changed."""
        page = await self._stored.look(self._version)
        if page.rows is not None:
            self._book.replace(_read(row) for row in page.rows)
            self._version = page.version
            self._changed()

    def reported(self, workers: Iterable[WorkerState]) -> None:
        """Learn from the reports of workers; only the leader calls this. What it has not written
        yet it may learn twice, which does no harm."""
        for worker in workers:
            if worker.copies:
                kinds = {each.index: each.model for each in worker.hello.devices}
                types = worker.hello.model_types  # what nobody declared is called as its handler
                known = [
                    each for each in worker.copies if each.model in self._book.models or each.model in types
                ]
                self._learnt |= self._book.learnt(known, kinds)
        if self._learnt:
            self.wake()

    async def run(self) -> None:
        while True:
            await wait_until_set(self._wake, POLL_S)
            self._wake.clear()
            try:
                with contextlib.suppress(StoreError):  # the next round reads and writes it
                    await self._write_learnt()
                    await self.refresh()
            except Exception:
                log.exception("a round of the models failed")

    async def _write_learnt(self) -> None:
        learnt, self._learnt = self._learnt, {}
        for name, measured in learnt.items():
            await self._stored.measure(name, measured)


def _read(row: ModelRow) -> KnownModel:
    """Return a model as this version understands it: a newer one may have declared what it does not know."""
    try:
        return known_model(row)
    except msgspec.MsgspecError as error:
        log.warning("a model of the registry was not understood", model=row.name, why=str(error))
        return KnownModel(row.name, pins=tuple(row.pins.split()), created_ms=row.created_ms)
