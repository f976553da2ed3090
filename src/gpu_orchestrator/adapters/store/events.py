"""Events in the store: one bounded stream that the scripts write in the same step that makes them true.

An id is `generation-number`; numbers count up by one, so whoever reads sees whether one is missing. A new
generation begins with a new or restored store.
"""

import re
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

READ_MOST = 500
STREAM = "events"
_ID = re.compile("([0-9]{1,15})-([0-9]{1,15})")
"""Longer numbers the scripts cannot count by."""


class Id(NamedTuple):
    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"

    def is_before(self, other: "Id") -> bool:
        """Whether nothing can have come between."""
        if self == START:
            return other.number == 0
        return other == Id(self.generation, self.number + 1)


START = Id(0, 0)
"""Before everything that is kept."""


def id_of(text: str) -> Id:
    """Raises `ValueError` for what is no id. `0` is before everything."""
    if text == "0":
        return START
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no id of an event; ids are two numbers, such as 1718000000000-42")
    return Id(int(found[1]), int(found[2]))


class Entry(Item, frozen=True):
    """`owner` is whose task it is about, empty for what concerns all; `data` is JSON."""

    id: str
    name: str
    owner: str
    at_ms: int
    data: str


class Page(Item, frozen=True):
    """`lost` is 1 where events before these are gone; `last` is the id to go on from."""

    lost: int
    last: str
    entries: tuple[Entry, ...]


_EVENTS = Script[Page]("events", Page)
_EMIT = Script[bool]("emit", bool)


class Events:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def page(self, after: Id | None, most: int = READ_MOST) -> Page:
        """What came after an event; without one the latest."""
        return await self._fenced.read(_EVENTS, () if after is None else after, most)

    async def emit(self, name: str, data: msgspec.Struct, *, owner: str = "") -> None:
        await self._fenced.read(_EMIT, name, owner, msgspec.json.encode(data).decode())

    async def keep(self, most: int) -> None:
        """How many events are kept, about."""
        await self._fenced.database.set_field("watch", "most", str(most))

    async def follow(self, after: Id) -> AsyncGenerator[list[Entry], None]:
        """What comes, as it comes, until the connection is lost."""
        async for entries in self._fenced.database.follow(STREAM, str(after), READ_MOST):
            yield [_entry(name, fields) for name, fields in entries]


def _entry(name: bytes, fields: list[bytes]) -> Entry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    return Entry(
        name.decode(), found[b"e"].decode(), found[b"o"].decode(), int(found[b"t"]), found[b"d"].decode()
    )
