"""Between the database and those who speak of tasks and workers: carries the leader's fence into every
write, and what the scripts tell out of it.

If this process leads, news comes straight from the answers, without a detour over the store. If an answer is
lost, so may be news: then the leader must look at everything anew.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import Fence, Told
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script

T = TypeVar("T")


def _ignore(_: tuple[Told, ...]) -> None: ...


def _no_doubt() -> None: ...


class FencedDatabase:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.fence: Fence = 0
        self._hear: Callable[[tuple[Told, ...]], None] = _ignore
        self._doubt: Callable[[], None] = _no_doubt

    def attach(self, hear: Callable[[tuple[Told, ...]], None], doubt: Callable[[], None] = _no_doubt) -> None:
        """While this process leads, call `hear` with the news of its writes, and `doubt` when an answer, and
        perhaps news with it, was lost."""
        self._hear, self._doubt = hear, doubt

    def drop_fence(self) -> None:
        """Write as a follower, until the process is elected again."""
        self.fence = 0

    async def write(self, script: Script[T], *arguments: Any) -> T:
        fence = self.fence
        try:
            news, value = await self.database.call(script, fence, *arguments)
        except Unreachable:
            if fence:
                self._doubt()
            raise
        if news and fence and fence == self.fence:
            self._hear(news)
        return value

    async def read(self, script: Script[T], *arguments: Any) -> T:
        """Also for small writes that the leader need not hear of."""
        return (await self.database.call(script, *arguments))[1]
