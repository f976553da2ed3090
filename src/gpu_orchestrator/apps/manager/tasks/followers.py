"""Clients that follow a task here, such as its log, and are woken when this process has stored more of it."""

import asyncio
import contextlib
from collections.abc import Iterator


class Followers:
    def __init__(self) -> None:
        self._of: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def following(self, task: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when there is more of this task."""
        news = asyncio.Event()
        self._of.setdefault(task, set()).add(news)
        try:
            yield news
        finally:
            self._of[task].discard(news)
            if not self._of[task]:
                del self._of[task]

    def wake(self, task: str) -> None:
        for news in self._of.get(task, ()):
            news.set()
