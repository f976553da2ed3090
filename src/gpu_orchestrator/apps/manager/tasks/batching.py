"""Batches calls to the store: items that arrive while one call is in flight go together in the next one.

One write to disk then serves hundreds of tasks, and a single task does not wait. Flows take turns, so that a
caller with ten thousand items does not delay the others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")


class BatchQueue(Generic[A]):
    """Calls `perform` with batches; `perform` must not raise. Items of one flow start in order; at most
    `at_once` batches of at most `most` items are in flight."""

    def __init__(
        self, perform: Callable[[list[A]], Awaitable[None]], *, most: int = 500, at_once: int = 1
    ) -> None:
        self._perform, self._most, self._at_once = perform, most, at_once
        self._flows: dict[str, deque[A]] = {}
        self._running: set[asyncio.Future[None]] = set()

    def put(self, *items: A, flow: str = "") -> None:
        waiting = self._flows.get(flow)
        if waiting is None:
            waiting = self._flows[flow] = deque()
        waiting.extend(items)
        self._start_batch()

    @property
    def is_idle(self) -> bool:
        return not self._running

    async def run_inline(self, doing: Awaitable[B]) -> B:
        """Await `doing` in the caller's own task, which costs less than a batch of one. Call only while the
        queue is idle; items added meanwhile are queued."""
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running.add(under_way)
        try:
            return await doing
        finally:
            under_way.set_result(None)
            self._ended(under_way)

    def _ended(self, running: "asyncio.Future[None] | None") -> None:
        self._running.discard(cast("asyncio.Future[None]", running))
        if self._flows:
            self._start_batch()

    def _start_batch(self) -> None:
        if len(self._running) < self._at_once:
            self._running.add(asyncio.get_running_loop().create_task(self._run()))

    async def close(self) -> None:
        """Wait until all items are done."""
        while self._running:
            await asyncio.wait(self._running)

    async def _run(self) -> None:
        try:
            while self._flows:
                await self._perform(self._next())
        finally:
            self._ended(asyncio.current_task())

    def _next(self) -> list[A]:
        """Return the next batch: one item of each flow in turn. A flow that just had its turn goes to the
        back."""
        if len(self._flows) == 1:
            ((flow, waiting),) = self._flows.items()
            if len(waiting) <= self._most:
                del self._flows[flow]
                return list(waiting)
        batch: list[A] = []
        while self._flows and len(batch) < self._most:
            flow, waiting = next(iter(self._flows.items()))
            count = min(len(waiting), self._most - len(batch)) if len(self._flows) == 1 else 1
            batch.extend([waiting.popleft() for _ in range(count)])
            del self._flows[flow]
            if waiting:
                self._flows[flow] = waiting
        return batch


class _Group(Generic[B]):
    """The answers to several items of one caller, who waits for all of them."""

    __slots__ = ("answers", "future", "left")

    def __init__(self, size: int) -> None:
        self.future: asyncio.Future[list[B]] = asyncio.get_running_loop().create_future()
        self.answers, self.left = cast("list[B]", [None] * size), size


class _Share(Generic[B]):
    """The answer to one of them. It is set like a future, and costs less than a future for each item."""

    __slots__ = ("_group", "_number")

    def __init__(self, group: _Group[B], number: int) -> None:
        self._group, self._number = group, number

    def done(self) -> bool:
        return self._group.future.done()

    def set_result(self, answer: B) -> None:
        group = self._group
        group.answers[self._number] = answer
        group.left -= 1
        if not group.left:
            group.future.set_result(group.answers)

    def set_exception(self, error: Exception) -> None:
        self._group.future.set_exception(error)


class Batcher(Generic[A, B]):
    """`perform` answers each item of a batch, in order; if it raises, all callers of that batch get the
    error."""

    def __init__(
        self, perform: Callable[[list[A]], Awaitable[Sequence[B]]], *, most: int = 500, at_once: int = 1
    ) -> None:
        self._perform = perform
        self._batches: BatchQueue[tuple[A, asyncio.Future[B] | _Share[B]]] = BatchQueue(
            self._answer, most=most, at_once=at_once
        )

    def put(self, item: A, flow: str = "") -> asyncio.Future[B]:
        future: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._batches.put((item, future), flow=flow)
        return future

    async def put_all(self, items: Sequence[A], flow: str = "") -> list[B]:
        if not items:
            return []
        if len(items) == 1:
            if self._batches.is_idle:
                return list(await self._batches.run_inline(self._perform([items[0]])))
            return [await self.put(items[0], flow)]
        group = _Group[B](len(items))
        self._batches.put(*[(item, _Share(group, number)) for number, item in enumerate(items)], flow=flow)
        return await group.future

    async def close(self) -> None:
        await self._batches.close()

    async def _answer(self, batch: list[tuple[A, asyncio.Future[B] | _Share[B]]]) -> None:
        try:
            answers = await self._perform([item for item, _ in batch])
        except Exception as error:
            for _, to in batch:
                if not to.done():
                    to.set_exception(error)
            return
        for (_, to), answer in zip(batch, answers, strict=True):
            if not to.done():
                to.set_result(answer)
