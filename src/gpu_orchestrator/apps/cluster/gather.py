"""Many callers, one call: what arrives while a call to the store is under way goes together in the next one.

One write to disk then serves hundreds of tasks, and a single task waits for nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Gather(Generic[A, B]):
    """`perform` answers each item of a batch, in order; if it raises, all callers of that batch get it."""

    def __init__(self, perform: Callable[[list[A]], Awaitable[Sequence[B]]], *, most: int = 500) -> None:
        self._perform, self._most = perform, most
        self._waiting: list[tuple[A, asyncio.Future[B]]] = []
        self._running: asyncio.Task[None] | None = None

    def put(self, item: A) -> asyncio.Future[B]:
        future: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        return future

    async def put_all(self, items: Sequence[A]) -> list[B]:
        futures = [self.put(item) for item in items]
        return [await futures[0]] if len(futures) == 1 else await asyncio.gather(*futures)

    async def close(self) -> None:
        """Until all that was put in is answered."""
        while self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._answer(batch)
        finally:
            self._running = None

    async def _answer(self, batch: list[tuple[A, asyncio.Future[B]]]) -> None:
        try:
            answers = await self._perform([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
