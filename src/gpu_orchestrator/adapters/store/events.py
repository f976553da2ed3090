"""Events in the store: one bounded stream. Scripts write an event in the same step as the change it reports.

An id is `generation-number`. Numbers increase by one, so a reader notices a missing event. A new or restored
store starts a new generation.
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
"""Lua scripts cannot represent longer numbers exactly."""


class Id(NamedTuple):
    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"

    def is_before(self, other: "Id") -> bool:
        """Return True if no event can lie between the two."""
        if self == START:
            return other.number == 0
        return other == Id(self.generation, self.number + 1)


START = Id(0, 0)
"""Precedes every stored event."""


def id_of(text: str) -> Id:
    """Parse an event id; `0` means before all events. Raises `ValueError` for a malformed id."""
    if text == "0":
        return START
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an event id; an id is two numbers, such as 1718000000000-42")
    return Id(int(found[1]), int(found[2]))


class Entry(Item, frozen=True):
    """One event. `owner` owns the task that it concerns, empty if it concerns everybody; `data` is JSON."""

    id: str
    name: str
    owner: str
    at_ms: int
    data: str


class Page(Item, frozen=True):
    """`lost` is 1 if older events that the caller has not read are gone; `last` is the id to continue
    from."""

    lost: int
    last: str
    entries: tuple[Entry, ...]


_EVENTS = Script[Page]("events", Page)
_EMIT = Script[bool]("emit", bool)


class Events:
    def __init__(self, fenced: FencedDatabase) -> None:
        self._fenced = fenced

    async def page(self, after: Id | None, most: int = READ_MOST) -> Page:
        """Return the events after `after`, or the latest ones without it."""
        return await self._fenced.read(_EVENTS, () if after is None else after, most)

    async def emit(self, name: str, data: msgspec.Struct, *, owner: str = "") -> None:
        await self._fenced.read(_EMIT, name, owner, msgspec.json.encode(data).decode())

    async def keep(self, most: int) -> None:
        """Set how many events the stream keeps, approximately."""
        await self._fenced.database.set_field("watch", "most", str(most))

    async def follow(self, after: Id) -> AsyncGenerator[list[Entry], None]:
        """Yield new events as they arrive, until the connection is lost."""
        async for entries in self._fenced.database.follow(STREAM, str(after), READ_MOST):
            yield [_entry(name, fields) for name, fields in entries]


def _entry(name: bytes, fields: list[bytes]) -> Entry:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    return Entry(
        name.decode(), found[b"e"].decode(), found[b"o"].decode(), int(found[b"t"]), found[b"d"].decode()
    )
