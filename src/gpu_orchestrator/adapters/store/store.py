"""The store as one thing: its parts share one link. Made once per process."""

from dataclasses import dataclass
from types import TracebackType

from gpu_orchestrator.adapters.store.audit import AuditLog
from gpu_orchestrator.adapters.store.callbacks import Callbacks
from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.events import Events
from gpu_orchestrator.adapters.store.history import History
from gpu_orchestrator.adapters.store.keys import StoredKeys
from gpu_orchestrator.adapters.store.leadership import Leadership
from gpu_orchestrator.adapters.store.link import Link
from gpu_orchestrator.adapters.store.shares import Shares
from gpu_orchestrator.adapters.store.tasks import DAY_MS, Tasks
from gpu_orchestrator.adapters.store.workers import Workers


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things last."""

    lease_ms: int = 10_000
    grace_ms: int = 3_000
    leader_ms: int = 3_000
    keep_ms: int = 7 * DAY_MS
    most_workers: int = 10
    audit_entries: int = 100_000


class Store:
    """`owner` names this process among those that use the same store."""

    def __init__(self, database: Database, *, owner: str, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        self.database, self.owner, self.terms = database, owner, terms
        self.link = Link(database)
        self.tasks = Tasks(self.link, keep_ms=terms.keep_ms)
        self.workers = Workers(
            self.link,
            lease_ms=terms.lease_ms,
            grace_ms=terms.grace_ms,
            keep_ms=terms.keep_ms,
            most=terms.most_workers,
        )
        self.callbacks = Callbacks(self.link)
        self.audit = AuditLog(self.link, keep=terms.audit_entries)
        self.shares = Shares(self.link)
        self.events = Events(self.link)
        self.history = History(self.link)
        self.keys = StoredKeys(self.link, keep_ms=terms.keep_ms)
        self.leadership = Leadership(self.link, owner=owner, lease_ms=terms.leader_ms)

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.database.close()
