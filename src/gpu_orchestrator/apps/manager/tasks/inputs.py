"""Put the results of other tasks into the parameters of a task before a worker gets it.

The store has only references, so a large result is there once, however many tasks take it. `Outcomes` calls
this for each task whose spec says that it takes results.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from gpu_orchestrator.adapters.results.place import ResultError
from gpu_orchestrator.adapters.store.tasks import Row, Tasks
from gpu_orchestrator.api import references, session
from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.api.units import MIB, show_memory
from gpu_orchestrator.apps.manager.tasks.results import Results
from gpu_orchestrator.apps.manager.views import size_of

LARGEST = 16 * MIB
AT_ONCE = 4
"""How many tasks are filled in at once: each may need several times `LARGEST` of this process's memory."""


class Inputs:
    def __init__(self, tasks: Tasks, results: Results) -> None:
        self._tasks, self._results = tasks, results
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def filled(self, assign: session.Assign) -> session.Assign | session.Failed:
        """Return the assignment with results in its parameters, or how the attempt fails without them."""
        async with self._turns:
            parameters = bytes(assign.parameters)
            ids = list(dict.fromkeys(references.of(parameters)))
            rows = dict(zip(ids, await self._tasks.fetch(ids), strict=True))
            if why := _missing(rows, assign.owner):
                return _failed(assign, "DependencyFailed", why)
            size = references.filled_size(parameters, lambda name: size_of(rows[name] or {}))
            if size > LARGEST:
                return _failed(
                    assign,
                    "ParametersTooLarge",
                    f"with the results that it takes, its parameters have {size} bytes; at most "
                    f"{show_memory(LARGEST // MIB)} can be sent; let tasks return the names of files",
                )
            try:
                results = {name: await self._result(name, row) for name, row in rows.items() if row}
            except ResultError as error:
                return _failed(assign, "ResultMissing", f"a result that it takes: {error}", retryable=True)
            full = references.filled(parameters, results)
            if is_too_deep(full):
                return _failed(
                    assign,
                    "ParametersTooDeep",
                    f"with the results that it takes, its parameters are nested deeper than {DEEPEST}",
                )
            return msgspec.structs.replace(assign, parameters=msgspec.Raw(full))

    async def _result(self, name: str, row: Row) -> bytes:
        if row["state"] != "completed":
            return references.NONE
        if row.get("result_at"):
            return b"".join([chunk async for chunk in self._results.stream(row)])
        (whole,) = await self._tasks.fetch([name], results=True)
        return ((whole or {}).get("result") or "null").encode()


def _missing(rows: Mapping[str, Row | None], owner: str) -> str:
    """Return what is wrong with the tasks whose results are taken. Submissions were checked; a store that was
    restored from a backup may lack some."""
    for name, row in rows.items():
        if row is None or row.get("tenant", "") != owner:
            return f"it takes the result of task {name}, which is no longer known; submit that one again"
    return ""


def _failed(assign: session.Assign, kind: str, why: str, *, retryable: bool = False) -> session.Failed:
    return session.Failed(assign.task, assign.attempt, session.TaskError(kind, why, retryable))
