"""What attempts sent before their end, in the store: partial results, numbered from 0 in each attempt.

Only those of the newest attempt are kept, and of those the newest up to a bound. A number counts values that
were dropped, too: a reader that goes on behind the last one it has gets none twice, and knows how many it
missed."""

from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

HOLD_MS = 60_000
"""For how long a reader that was heard of holds a task back."""


class ValuesPiece(Item, frozen=True):
    """Values that an attempt sent, one on each line of `text`; `at` is the number of the first, `taken` how
    many its worker knows to be taken."""

    id: str
    attempt: int
    worker: str
    epoch: int
    at: int
    count: int
    taken: int
    text: str


class Verdict(Item, frozen=True):
    """How many values of the attempt are taken; -1 if its worker does not hold it. `later`: send the piece
    again later."""

    taken: int
    later: int


class Place(msgspec.Struct, frozen=True):
    """A place among the values of a task: an attempt, and how many of its values come before."""

    attempt: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}-{self.number}"


class Reader(msgspec.Struct, frozen=True):
    """A client that reads for `owner`, and the place of the next value: all before it have arrived.
    Without a name it holds nothing back."""

    name: str = ""
    owner: str = ""
    wants: Place = Place()


class ValuesEntry(Item, frozen=True):
    """`at` is the number of the first value, of one on each line."""

    at: int
    text: str


class ValuesPart(Item, frozen=True):
    """Values, and their task at the same moment; `state` is empty if there is no such task. The attempt has
    sent `count` values. `refused`: lately some were not taken, because a reader is behind."""

    state: str
    owner: str
    attempt: int
    count: int
    refused: int
    entries: tuple[ValuesEntry, ...]


class Lines(msgspec.Struct, frozen=True):
    """Values from the number `first` to `next`, one on each line. Before them, `missed` are no longer
    kept."""

    first: int
    next: int
    missed: int
    text: str


_APPEND = Script[tuple[Verdict, ...]]("values_append", tuple[Verdict, ...])
_READ = Script[ValuesPart]("values_read", ValuesPart)


class Values:
    def __init__(self, fenced: FencedDatabase, *, most_bytes: int) -> None:
        self._fenced, self.most_bytes = fenced, most_bytes

    async def append(self, pieces: Sequence[ValuesPiece], most_of_all: int) -> tuple[Verdict, ...]:
        """Store pieces; what is stored already counts once. `most_of_all` is the bound of all logs."""
        return await self._fenced.read(_APPEND, self.most_bytes, most_of_all, pieces)

    async def read(
        self, name: str, after: Place, most_bytes: int, reader: Reader | None = None
    ) -> ValuesPart:
        """Return values of the newest attempt: from this place on, or all if it is of another attempt."""
        by = reader or Reader()
        wants = by.wants.number if by.wants.attempt == after.attempt else 0
        return await self._fenced.read(
            _READ, name, after.attempt, wants, after.number, most_bytes, by.name, by.owner, HOLD_MS
        )


def lines_of(part: ValuesPart, after: Place) -> Lines:
    """Return the values of a part behind a place, up to the next gap."""
    at = min(after.number, part.count) if after.attempt == part.attempt else 0
    if not part.entries:
        return Lines(part.count, part.count, part.count - at, "")
    first = max(part.entries[0].at, at)
    texts: list[str] = []
    end = first
    for entry in part.entries:
        if entry.at > end:
            break
        lines = entry.text.split("\n") if entry.at < end else None
        texts.append("\n".join(lines[end - entry.at :]) if lines else entry.text)
        end = entry.at + entry.text.count("\n") + 1
    return Lines(first, end, first - at, "\n".join(texts))
