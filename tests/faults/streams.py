"""Faults of a running watch: each turns the server's frames into the frames that the component gets.

A frame is one line of JSON with its newline. A fault that raises `SeveredError` cuts the connection there.
It calls `on_hit()` at the moment it takes effect: that is when the trigger counts a hit.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.gate import Gate
from tests.faults.statuses import status

Frames = AsyncIterator[bytes]
Event = dict[str, Any]
OnHit = Callable[[], None]


class SeveredError(Exception):
    """Cut the connection here, without a clean close."""


class StreamFault(ABC):
    @abstractmethod
    def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames: ...


@dataclass(frozen=True, slots=True)
class HoldWatch(StreamFault):
    """After `after_events` the watch stays open and silent until `release()`; then held events follow."""

    after_events: int = 0
    gate: Gate = field(default_factory=Gate, compare=False)

    def release(self) -> None:
        self.gate.open()

    async def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames:
        if self.after_events == 0:
            on_hit()
            await self.gate.wait()
        async for number, frame in numbered(frames):
            yield frame
            if number == self.after_events:
                on_hit()
                await self.gate.wait()


@dataclass(frozen=True, slots=True)
class CutWatch(StreamFault):
    """The connection is cut after `after_events`, by default in the middle of the next event.

    With `mid_frame=False` it is cut between two frames, as soon as the last one has been passed on.
    """

    after_events: int = 0
    mid_frame: bool = True

    async def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames:
        if self.after_events == 0 and not self.mid_frame:
            on_hit()
            raise SeveredError
        async for number, frame in numbered(frames):
            if number > self.after_events:
                yield frame[: len(frame) // 2]
                on_hit()
                raise SeveredError
            yield frame
            if number == self.after_events and not self.mid_frame:
                on_hit()
                raise SeveredError


@dataclass(frozen=True, slots=True)
class DropEvents(StreamFault):
    """Events that `match` are not passed on; with `count`, only the first `count` of them."""

    match: Callable[[Event], bool] | None = None
    count: int | None = None

    async def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames:
        async for frame, hit in matched(frames, self.match, self.count):
            if hit:
                on_hit()
            else:
                yield frame


@dataclass(frozen=True, slots=True)
class RepeatEvents(StreamFault):
    """Events that `match` are passed on twice; with `count`, only the first `count` of them."""

    match: Callable[[Event], bool] | None = None
    count: int | None = None

    async def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames:
        async for frame, hit in matched(frames, self.match, self.count):
            yield frame
            if hit:
                on_hit()
                yield frame


@dataclass(frozen=True, slots=True)
class Gone(StreamFault):
    """410: the HTTP answer of a list or watch or, with `as_event`, an ERROR event after `after_events`."""

    as_event: bool = False
    after_events: int = 0

    async def pass_on(self, frames: Frames, on_hit: OnHit) -> Frames:
        if self.after_events:
            async for number, frame in numbered(frames):
                yield frame
                if number == self.after_events:
                    break
        on_hit()
        yield json.dumps({"type": "ERROR", "object": gone()}).encode() + b"\n"


def gone() -> Event:
    return status(410, message="too old resource version: from the fault proxy")


async def lines(chunks: AsyncIterator[bytes]) -> Frames:
    """Yield frames as they become complete. The reader's own line limit of 64 KiB is too small for some."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


async def numbered(frames: Frames) -> AsyncIterator[tuple[int, bytes]]:
    number = 0
    async for frame in frames:
        number += 1
        yield number, frame


async def matched(
    frames: Frames, match: Callable[[Event], bool] | None, count: int | None
) -> AsyncIterator[tuple[bytes, bool]]:
    hits = 0
    async for frame in frames:
        hit = (count is None or hits < count) and (match is None or match(json.loads(frame)))
        hits += hit
        yield frame, hit
