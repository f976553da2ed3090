"""Many callers, one call: what arrives while a call to the store is under way goes together in the next one.

One write to disk then serves hundreds of tasks, and a single task waits for nobody. Flows take turns, so that
one caller with ten thousand keeps nobody else waiting.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")


class Gather(Generic[A, B]):
    """`perform` answers each item of a batch, in order; if it raises, all callers of that batch get it. Items
    of one flow begin in order; `at_once` batches of at most `most` may be under way."""

    def __init__(
        self,
        perform: Callable[[list[A]], Awaitable[Sequence[B]]],
        *,
        most: int = 500,
        at_once: int = 1,
        flow_of: Callable[[A], str] = lambda _: "",
    ) -> None:
        self._perform, self._most, self._at_once, self._flow_of = perform, most, at_once, flow_of
        self._flows: dict[str, deque[tuple[A, asyncio.Future[B]]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def put(self, item: A) -> asyncio.Future[B]:
        future: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        flow = self._flow_of(item)
        waiting = self._flows.get(flow)
        if waiting is None:
            waiting = self._flows[flow] = deque()
        waiting.append((item, future))
        if len(self._running) < self._at_once:
            self._running.add(asyncio.get_running_loop().create_task(self._run()))
        return future

    async def put_all(self, items: Sequence[A]) -> list[B]:
        futures = [self.put(item) for item in items]
        return [await futures[0]] if len(futures) == 1 else await asyncio.gather(*futures)

    async def close(self) -> None:
        """Until all that was put in is answered."""
        while self._running:
            await asyncio.wait(self._running)

    async def _run(self) -> None:
        try:
            while self._flows:
                await self._answer(self._next())
        finally:
            self._running.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _next(self) -> list[tuple[A, asyncio.Future[B]]]:
        """One of each flow in turn, and who had the last one is the last in the next round."""
        batch: list[tuple[A, asyncio.Future[B]]] = []
        while self._flows and len(batch) < self._most:
            flow, waiting = next(iter(self._flows.items()))
            count = min(len(waiting), self._most - len(batch)) if len(self._flows) == 1 else 1
            batch.extend(waiting.popleft() for _ in range(count))
            del self._flows[flow]
            if waiting:
                self._flows[flow] = waiting
        return batch

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
