"""Callbacks in the store: the script that commits a task's end also makes its callback due, so none is
lost."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.store.tasks import Row, row_of
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

_Flat = tuple[str | int, ...]
_Due = tuple[tuple[tuple[str, int, _Flat], ...], int]
_DUE = Script[_Due]("callbacks", _Due)
_CALLBACK_RESULT = Script[bool]("callback_result", bool)


@dataclass(frozen=True, slots=True)
class Due:
    """A callback to deliver; `tries` counts the earlier attempts."""

    task: str
    tries: int
    row: Row


@dataclass(frozen=True, slots=True)
class Take:
    """Which callbacks to take: at most `most`, and of each host at most what `of_host` says, else
    `of_others`. Those of a host that may get no more are looked at again after `pause_ms`. One that is taken
    is due again after `for_ms` unless its result is stored by then."""

    most: int
    for_ms: int
    of_host: Mapping[str, int]
    of_others: int
    pause_ms: int


class Callbacks:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def begin(self) -> str:
        """Return the store's present history, for `durable`."""
        return await self._fenced.database.begin()

    async def durable(self, history: str) -> None:
        """Wait until everything since `begin` is durable, if the store is strict."""
        await self._fenced.database.durable(history)

    async def take(self, take: Take) -> tuple[list[Due], bool]:
        """Take callbacks that are due, and say whether more may be due."""
        hosts = [part for item in take.of_host.items() for part in item]
        found, more = await self._fenced.read(
            _DUE, take.most, take.for_ms, hosts, take.of_others, take.pause_ms
        )
        return [Due(task, tries, row_of(row) or {}) for task, tries, row in found], bool(more)

    async def delivered(self, due: Due) -> None:
        await self._store_result(due, "delivered", -1)

    async def again(self, due: Due, reason: str, in_ms: int) -> None:
        await self._store_result(due, f"waits: {reason}", in_ms)

    async def give_up(self, due: Due, reason: str) -> None:
        await self._store_result(due, f"given up: {reason}", -1, given_up=True)

    async def _store_result(self, due: Due, text: str, again_ms: int, *, given_up: bool = False) -> None:
        finished = due.row.get("finished", "")
        await self._fenced.read(_CALLBACK_RESULT, due.task, finished, text[:500], again_ms, int(given_up))
