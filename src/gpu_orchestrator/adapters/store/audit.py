"""The audit log in the store: two streams that are only ever appended to, and that lose their oldest entries
when they are full. `changes` holds what admins did; `traffic` all else, so that a flood of submissions cannot
push out who changed what. Numbers go through both without gaps.
"""

from collections.abc import Sequence
from typing import Literal

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

Stream = Literal["changes", "traffic"]


class Noted(Item, frozen=True):
    """`text` is the entry as JSON."""

    number: int
    text: str


class AuditPage(Item, frozen=True):
    """Newest first; `total` is how many there are at all."""

    total: int
    entries: tuple[Noted, ...]


_WRITE = Script[bool]("audit_write", bool)
_PAGE = Script[AuditPage]("audit_page", AuditPage)


class AuditLog:
    """Each stream holds about `keep` entries."""

    def __init__(self, fenced: FencedDatabase, *, keep: int) -> None:
        self._fenced, self.keep = fenced, keep

    async def write(self, entries: Sequence[tuple[Stream, str]]) -> None:
        await self._fenced.read(_WRITE, self.keep, entries)

    async def page(self, *, before: int = 0, limit: int) -> AuditPage:
        """Entries with lower numbers than `before`; 0: the newest."""
        return await self._fenced.read(_PAGE, before, limit)
