"""Models for the dispatcher: what waiting tasks reserve once a size is known, and loads ahead of them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.dispatch.task_table import TaskTable
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.model_estimates import Estimate

AT_ONCE = 500
"""Tasks to ask again for in one pass: a hundred thousand may wait for one model."""
LOOKED_AT = 8
"""Models to look for a place for, in one round of the leader."""
AGAIN_S = 60.0
"""A model is not asked for more often than this: a worker may know a reason not to load it."""


class DispatchedModels:
    """`ask` puts a waiting task into the engine again, as it is now."""

    def __init__(self, engine: Engine, book: ModelBook, tasks: TaskTable, ask: Callable[[str], None]) -> None:
        self._engine, self._book, self._tasks, self._ask = engine, book, tasks, ask
        self._sizes: dict[str, int] = {}
        self._resized: deque[str] = deque()
        self._asked_at: dict[str, float] = {}
        self._estimate()

    @property
    def has_more(self) -> bool:
        return bool(self._resized)

    def changed(self) -> None:
        """Note the tasks that wait for a model whose size is known now, or known better."""
        changed, line = self._estimate(), self._engine.models.line
        self._resized.extend(each.request.key for model in changed for _, each in line.of(model))

    def ask_again(self) -> None:
        """Ask again for a part of those tasks."""
        for _ in range(min(len(self._resized), AT_ONCE)):
            key = self._resized.popleft()
            if (known := self._tasks.get(key)) is not None and known.waits and self._engine.waiting(key):
                self._ask(key)

    def preloads(
        self, workers: Mapping[str, WorkerState], now: float
    ) -> Iterator[tuple[WorkerState, session.Preload]]:
        """Yield what to load where, because waiting tasks name it and there is room."""
        self._asked_at = {name: at for name, at in self._asked_at.items() if now - at < AGAIN_S}
        for place in self._engine.preloads(LOOKED_AT, self._asked_at):
            key, worker = place.request.key, workers.get(place.placement.node)
            if worker is not None and (known := self._tasks.get(key)) is not None:
                self._asked_at[known.spec.model] = now
                grant = rows.grant_of(place, worker)
                model = self._book.message(known.spec) or session.Model(known.spec.model)
                yield worker, session.Preload(known.spec.task_type, model, grant.devices, grant.memory_mib)

    def _estimate(self) -> list[str]:
        """Take in what the book says of all models; return those whose size it changes."""
        before, self._sizes = self._sizes, {}
        for each in self._book.models.values():
            self._sizes[each.name] = mib = each.memory_mib
            self._engine.models.estimates.declare(each.name, Estimate(each.load_s, None, mib or None))
        names = before.keys() | self._sizes.keys()
        return [name for name in names if before.get(name, 0) != self._sizes.get(name, 0)]
