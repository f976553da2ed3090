"""The database as the parts of the store use it: adds the leader's fence to every write and passes on the
news that scripts answer with.

If this process leads, it gets news directly from the answers to its own writes. If an answer is lost, news
may be lost with it, so the leader must load a new snapshot.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from gpu_orchestrator.adapters.store.errors import Full, Unreachable
from gpu_orchestrator.adapters.store.records import Fence, NewsItem
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script

T = TypeVar("T")


def _ignore_news(_: tuple[NewsItem, ...]) -> None: ...


def _nothing() -> None: ...


class FencedDatabase:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.fence: Fence = 0
        self._on_news: Callable[[tuple[NewsItem, ...]], None] = _ignore_news
        self._on_lost_answer: Callable[[], None] = _nothing

    def attach(
        self, on_news: Callable[[tuple[NewsItem, ...]], None], on_lost_answer: Callable[[], None]
    ) -> None:
        """While this process leads, call `on_news` with the news of its writes, and `on_lost_answer` when an
        answer, and perhaps news with it, was lost."""
        self._on_news, self._on_lost_answer = on_news, on_lost_answer

    def drop_fence(self) -> None:
        """Write as a follower until this process is elected again."""
        self.fence = 0

    async def write(self, script: Script[T], *arguments: Any) -> T:
        fence = self.fence
        try:
            news, value = await self.database.call(script, fence, *arguments)
        except Full:  # the script did not run, so no news is lost
            raise
        except Unreachable:
            if fence:
                self._on_lost_answer()
            raise
        if news and fence and fence == self.fence:
            self._on_news(news)
        return value

    async def read(self, script: Script[T], *arguments: Any) -> T:
        """Run a script without the fence; also for small writes that the leader need not know of."""
        return (await self.database.call(script, *arguments))[1]
