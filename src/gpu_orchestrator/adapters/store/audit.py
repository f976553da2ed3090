"""The audit log in the store: two append-only streams that drop their oldest entries when they are full.

`changes` holds the actions of admins and `traffic` everything else, so a flood of submissions cannot push out
the record of a change. Both streams share one sequence of numbers without gaps.
"""

from collections.abc import Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

Stream = Literal["changes", "traffic"]


class Noted(Item, frozen=True):
    """One entry; `text` is JSON."""

    number: int
    text: str


class AuditPage(Item, frozen=True):
    """Entries, newest first; `total` counts all entries in the log."""

    total: int
    entries: tuple[Noted, ...]


_WRITE = Script[bool]("audit_write", bool)
_PAGE = Script[AuditPage]("audit_page", AuditPage)


class AuditLog:
    """Writes and reads the log; each stream keeps about `keep` entries."""

    def __init__(self, fenced: FencedDatabase, *, keep: int) -> None:
        self._fenced, self.keep = fenced, keep

    async def write(self, entries: Sequence[tuple[Stream, str]]) -> None:
        await self._fenced.read(_WRITE, self.keep, entries)

    async def page(self, *, before: int = 0, limit: int) -> AuditPage:
        """Return entries with numbers below `before`; 0 starts with the newest."""
        return await self._fenced.read(_PAGE, before, limit)
