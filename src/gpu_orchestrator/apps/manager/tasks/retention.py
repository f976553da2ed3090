"""Keeps ended tasks within their bounds: their number, the memory of the store, the size of results.

Their age is the store's work: rows expire, and `trim.lua` takes them off the lists. Here the leader forgets
the oldest completed tasks early when there are too many, or when the store or the results fill up, so that
new tasks need not be refused. Every process deletes results that belong to no task.

         0          80 %      85 %          90 %               95 %       100 % of MAX_STORE_MB
store    |───────────|─────────|─────────────|──────────────────|──────────|
                     forget down to          new tasks are      few tasks start,
                               forget from   refused            one at least
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from gpu_orchestrator.adapters.results.place import ResultAt, ResultError
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.results import Forgotten
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.facts import Room
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.results import Results

log = structlog.get_logger()

EVERY_S, HURRY_S = 1.0, 0.1
FORGET_FROM, FORGET_TO, HOLD_FROM = 0.85, 0.8, 0.95
AT_ONCE, ROUNDS = 200, 10
RECENT_MS = 5000
"""Tasks that ended just now are not forgotten: a client may be about to read them."""
SWEEP_EVERY_S, ORPHAN_AGE_S = 600.0, 3600.0
"""A result older than this that belongs to no task was never committed, or its task is gone."""
ROW_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Bounds:
    """0 means no bound, and for the store its default."""

    tasks: int
    store_bytes: int
    result_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> "Bounds":
        return cls(
            settings.task_retention_count, int(settings.max_store_mb * MIB), int(settings.results_mb * MIB)
        )


class Retention:
    """`most_active` is how many attempts may be active at once because the store is nearly full; None if any
    number may. `forgetting` says why tasks are forgotten early just now; empty if none are."""

    def __init__(
        self, store: Store, results: Results, bounds: Bounds, metrics: Metrics, leads: Callable[[], bool]
    ) -> None:
        self._store, self._results, self._bounds = store, results, bounds
        self._metrics, self._leads = metrics, leads
        self.most_active: int | None = None
        self.forgetting = ""
        self._sweep_at = monotonic() + EVERY_S
        self._told = 0
        self._left: dict[str, int] = {}
        """By bound, the oldest tasks that had to stay, such as those whose callback is due: the next call
        skips them, or a receiver that does not answer would keep all others from being forgotten."""

    async def run(self) -> None:
        while True:
            pause_s = EVERY_S
            try:
                pause_s = HURRY_S if await self.enforce() else EVERY_S
            except StoreError:  # the leader says so
                # Results wait to be committed, and may be older than ORPHAN_AGE_S by then: they go first.
                self._sweep_at = monotonic() + SWEEP_EVERY_S
            except Exception:
                log.exception("keeping the bounds of ended tasks failed")
            await asyncio.sleep(pause_s)

    async def enforce(self, *, recent_ms: int = RECENT_MS) -> bool:
        """Do one round; return True if more is to be forgotten."""
        room, logs = await self._store.database.room(self._bounds.store_bytes), await self._store.logs.size()
        room = Room(max(room.used - logs, 0), room.most)  # logs give way to tasks
        self.most_active = _most_active(room, self._results.inline_bytes)
        held = await self._store.results.held()
        self._tell_end(held.forgetting)
        self.forgetting = held.forgetting
        more = self._leads() and await self._forget(room, held.ended, held.result_bytes, recent_ms)
        await self._delete_due()
        if monotonic() >= self._sweep_at:
            self._sweep_at = monotonic() + SWEEP_EVERY_S
            await self.sweep(ORPHAN_AGE_S)
        return more

    async def sweep(self, age_s: float) -> int:
        """Delete results older than this that belong to no task; return how many. Only the leader looks into
        a bucket, which all servers share."""
        gone = 0
        for place in self._results.places:
            if place.kind == "s3" and not self._leads():
                continue
            try:
                async for page in place.old(age_s):
                    known = await self._store.results.known([str(each) for each in page])
                    orphans = [each for each, is_known in zip(page, known, strict=True) if not is_known]
                    await self._results.delete(orphans)
                    gone += len(orphans)
            except ResultError as error:
                log.warning("results without a task could not be looked for", error=str(error))
        if gone:
            log.info("deleted results without a task", results=gone)
        return gone

    async def _forget(self, room: Room, ended: int, result_bytes: int, recent_ms: int) -> bool:
        bounds, more = self._bounds, False
        if room.most and room.used > FORGET_FROM * room.most:
            wanted = int(room.used - FORGET_TO * room.most)
            why = f"the store uses {room.used // MIB} of at most {room.most // MIB} MiB (MAX_STORE_MB)"
            for _ in range(ROUNDS):
                found = await self._forget_some("store", why, recent_ms, store_bytes=wanted)
                wanted -= found.store_bytes
                if wanted <= 0 or not (found.tasks or found.left):
                    break
            more = wanted <= 0 or bool(found.tasks)
        else:
            self._left.pop("store", None)
        if bounds.tasks and ended > bounds.tasks:
            why = f"{ended} ended tasks are more than {bounds.tasks} (TASK_RETENTION_COUNT)"
            many = min(ended - bounds.tasks, AT_ONCE)
            found = await self._forget_some("count", why, recent_ms, most=many)
            more = more or found.tasks == AT_ONCE
        else:
            self._left.pop("count", None)
        if wanted := self._too_large(result_bytes):
            limit = (
                f"{bounds.result_bytes // MIB} MiB (RESULTS_MB)" if bounds.result_bytes else "the disk allows"
            )
            why = f"results have {result_bytes // MIB} MiB, more than {limit}"
            found = await self._forget_some("results", why, recent_ms, result_bytes=wanted)
            more = more or bool(found.tasks)
        else:
            self._left.pop("results", None)
        return more

    async def _forget_some(
        self,
        bound: str,
        why: str,
        recent_ms: int,
        *,
        most: int = AT_ONCE,
        store_bytes: int = 0,
        result_bytes: int = 0,
    ) -> Forgotten:
        """Forget some tasks, after those that had to stay; begin with the oldest again at the end."""
        left = self._left.get(bound, 0)
        found = await self._store.results.forget(
            why,
            most=most,
            store_bytes=store_bytes,
            result_bytes=result_bytes,
            older_than_ms=recent_ms,
            skip=left,
        )
        self._left[bound] = left + found.left if found.tasks or found.left else 0
        self._count(bound, why, found)
        return found

    def _too_large(self, result_bytes: int) -> int:
        """Return how many bytes of results are too many: beyond their bound, or on a disk that is nearly
        full."""
        left = self._results.disk_left()
        short = left.low - left.free if left and left.is_low and result_bytes else 0
        beyond = result_bytes - self._bounds.result_bytes if self._bounds.result_bytes else 0
        return max(short, beyond, 0)

    async def _delete_due(self) -> None:
        while self._leads() and (due := await self._store.results.take_due(AT_ONCE)):
            await self._results.delete(map(ResultAt.read, due))

    def _count(self, why: str, said: str, found: Forgotten) -> None:
        if found.begins:
            log.warning("ended tasks are forgotten early", why=said)
        if found.tasks:
            self.forgetting = said
            self._told += found.tasks
            self._metrics.forgotten.labels(why).inc(found.tasks)

    def _tell_end(self, forgetting: str) -> None:
        if self._told and not forgetting:
            log.info("no more ended tasks are forgotten early", forgotten=self._told)
            self._told = 0


def _most_active(room: Room, inline_bytes: int) -> int | None:
    """Return how many attempts may be active so that their results fit. At least one may: when it ends, its
    parameters make room."""
    if not room.most or room.used <= HOLD_FROM * room.most:
        return None
    return max((room.most - room.used) // (inline_bytes + ROW_BYTES), 1)
