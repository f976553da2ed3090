"""The store as one object, created once per process; its parts share one connection and one fence."""

from dataclasses import dataclass
from types import TracebackType

from gpu_orchestrator.adapters.store.audit import AuditLog
from gpu_orchestrator.adapters.store.callbacks import Callbacks
from gpu_orchestrator.adapters.store.events import Events
from gpu_orchestrator.adapters.store.files import Files
from gpu_orchestrator.adapters.store.history import History
from gpu_orchestrator.adapters.store.kept_places import StoredPlaces
from gpu_orchestrator.adapters.store.keys import StoredKeys
from gpu_orchestrator.adapters.store.leadership import Leadership
from gpu_orchestrator.adapters.store.logs import Logs
from gpu_orchestrator.adapters.store.models import StoredModels
from gpu_orchestrator.adapters.store.records import Breaker
from gpu_orchestrator.adapters.store.results import ResultIndex
from gpu_orchestrator.adapters.store.scaling import Scaling
from gpu_orchestrator.adapters.store.schedules import Schedules
from gpu_orchestrator.adapters.store.snapshots import Snapshots
from gpu_orchestrator.adapters.store.tasks import DAY_MS, Tasks
from gpu_orchestrator.adapters.store.usage import UsageStore
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.values import Values
from gpu_orchestrator.adapters.store.workers import Workers


@dataclass(frozen=True, slots=True)
class StoreTimeouts:
    """How long leases and rows last, how many workers and audit entries the store keeps, and how much of a
    task's log and of its partial results, and when a worker's circuit opens."""

    lease_ms: int = 10_000
    grace_ms: int = 3_000
    hold_ms: int = 60_000
    leader_ms: int = 3_000
    keep_ms: int = DAY_MS
    worker_keep_ms: int = DAY_MS
    most_workers: int = 10
    audit_entries: int = 100_000
    log_bytes: int = 256 << 10
    values_bytes: int = 4 << 20
    breaker: Breaker = Breaker()  # noqa: RUF009 - frozen


class Store:
    """All parts of the store. `owner` names this process among those that use the same store."""

    def __init__(self, database: Database, *, owner: str, timeouts: StoreTimeouts = StoreTimeouts()) -> None:  # noqa: B008 - frozen
        self.database, self.owner, self.timeouts = database, owner, timeouts
        self.fenced = FencedDatabase(database)
        self.tasks = Tasks(self.fenced, keep_ms=timeouts.keep_ms, breaker=timeouts.breaker)
        self.snapshots = Snapshots(self.fenced)
        self.schedules = Schedules(self.fenced)
        self.workers = Workers(
            self.fenced,
            lease_ms=timeouts.lease_ms,
            grace_ms=timeouts.grace_ms,
            hold_ms=timeouts.hold_ms,
            keep_ms=timeouts.keep_ms,
            most=timeouts.most_workers,
        )
        self.logs = Logs(self.fenced, most_bytes=timeouts.log_bytes, keep_ms=timeouts.keep_ms)
        self.values = Values(self.fenced, most_bytes=timeouts.values_bytes)
        self.files = Files(self.fenced, keep_ms=timeouts.keep_ms)
        self.callbacks = Callbacks(self.fenced)
        self.results = ResultIndex(self.fenced)
        self.audit = AuditLog(self.fenced, keep=timeouts.audit_entries)
        self.usage = UsageStore(self.fenced)
        self.events = Events(self.fenced)
        self.history = History(self.fenced)
        self.keys = StoredKeys(self.fenced, keep_ms=timeouts.keep_ms)
        self.models = StoredModels(self.fenced)
        self.scaling = Scaling(self.fenced)
        self.kept_places = StoredPlaces(self.fenced)
        self.leadership = Leadership(self.fenced, owner=owner, lease_ms=timeouts.leader_ms)

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.database.close()
