"""The election loop of a manager process. While it leads, it runs the dispatcher and removes dead workers.

following ──elected──▶ leading, no dispatcher ──loaded──▶ leading
    ▲                          ▲                            │ an answer was lost, news was missed
    └──── another leads ───────┴────── invalidated ◀────────┘
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from time import time

import structlog

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import (
    ElectionResult,
    Fence,
    NewsItem,
    NewTask,
    Renewal,
    Submitted,
    Unit,
)
from gpu_orchestrator.adapters.store.snapshots import NotLeading
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher
from gpu_orchestrator.apps.manager.dispatch.maintenance import Maintenance
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper
from gpu_orchestrator.apps.manager.fleet import kept_places, rows
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState

log = structlog.get_logger()

TERMS_PER_LEASE = 3
STORE_PAUSE_S = 0.2
RESIGN_S = 2.0
RECOUNT_EVERY_S = 1.0


@dataclass(slots=True)
class StoreClock:
    """An estimate of the store's clock in seconds: the local clock plus the difference last measured."""

    off_s: float = 0.0

    def now(self) -> float:
        return time() + self.off_s

    def set(self, store_ms: int) -> None:
        self.off_s = store_ms / 1000 - time()


async def nothing_is_due() -> bool:
    return False


@dataclass(slots=True)
class Leader:
    deps: DispatcherDeps
    clock: StoreClock
    reaper: Reaper
    fire_schedules: Callable[[], Awaitable[bool]] = nothing_is_due
    """Queues the tasks of schedules that are due; returns whether more are."""
    dispatcher: Dispatcher | None = None
    leader: str = ""
    reached_since: float = 0.0
    _early_news: list[NewsItem] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _recounted: float = 0.0
    _reached: bool = False
    _told_places: bool = False
    _maintenance: Maintenance = field(init=False)

    def __post_init__(self) -> None:
        self._maintenance = Maintenance(self.deps.store)

    @property
    def store(self) -> Store:
        return self.deps.store

    @property
    def leads(self) -> bool:
        return self.dispatcher is not None

    def wake(self) -> None:
        """Start the next round now, because there may be news."""
        self._wake.set()

    def submit(
        self, tasks: Sequence[NewTask], units: Sequence[Unit], unit_of: Sequence[int]
    ) -> Awaitable[Sequence[Submitted]]:
        """Queue new tasks: through the dispatcher if this process leads, else only in the store."""
        return (self.dispatcher or self.store.tasks).submit(tasks, units, unit_of)

    async def run(self) -> None:
        """Take part in elections until cancelled; then step down, so that another process takes over at
        once."""
        self.store.fenced.attach(self._on_news, self._invalidate)
        try:
            while True:
                await self._round()
        finally:
            self._drop_dispatcher()
            with contextlib.suppress(StoreError, TimeoutError):  # then its term expires
                async with asyncio.timeout(RESIGN_S):
                    await self.store.leadership.resign()

    async def _round(self) -> None:
        try:
            await self._elect()
        except StoreError as error:
            if self._reached:
                log.warning("the store does not answer", error=str(error))
            self._reached, self.reached_since = False, 0.0
            await self._back_off()
        except Exception:
            log.exception("a round of the leader failed")
            await self._back_off()
        else:
            self._reached = True
            await wait_until_set(self._wake, self.store.timeouts.leader_ms / 1000 / TERMS_PER_LEASE)
            self._wake.clear()

    async def _back_off(self) -> None:
        """Invalidate the term, then back off. `wake` does not end that pause, so a store outage cannot
        become a busy loop."""
        self._invalidate()
        await asyncio.sleep(STORE_PAUSE_S)

    async def _elect(self) -> None:
        fence = self.store.fenced.fence
        leading = await self.store.leadership.campaign()
        self.leader, self.reached_since = leading.owner, self.reached_since or time()
        self.clock.set(leading.now_ms)
        if not leading.fence:
            return self._drop_dispatcher()
        if self.dispatcher is None or leading.fence != fence:
            # This extends leases, so those in `leading` no longer count as expired.
            await self._begin_term(leading)
        else:
            await self._read_news()
            await self._reap(leading)
        if self.dispatcher is not None:
            await self._disconnect_orphans(leading, self.dispatcher.workers)
        await self._recount()
        if self.dispatcher is not None:
            await self._begin_and_expire()
        if self.dispatcher is not None:
            if self.deps.preloads:
                self.dispatcher.preload()
            await self._maintenance.do(list(self.dispatcher.workers.values()))
        if self.dispatcher is not None:
            await self._tell_places(self.dispatcher)
        return None

    async def _tell_places(self, dispatcher: Dispatcher) -> None:
        """Write down which places are kept, for the processes that do not lead."""
        places = dispatcher.kept_places()
        if places or self._told_places:
            await self.store.kept_places.write(kept_places.encoded(places, self.clock.now()))
        self._told_places = bool(places)

    async def _begin_and_expire(self) -> None:
        """Queue the tasks whose time or turn has come; end those that expired or whose dependency
        failed."""
        due = await self._maintenance.due()
        for name in due.ended:
            self.deps.ended(name)
            self.deps.metrics.ended("failed", 0.0)
        self.deps.metrics.tasks_expired.inc(len(due.ended))
        more_schedules = due.schedules and await self.fire_schedules()
        cancelled, more_links = await self._maintenance.links()
        for name in cancelled:
            self.deps.ended(name)
            self.deps.metrics.ended("cancelled", 0.0)
        if due.more or more_links or more_schedules:
            self._wake.set()

    async def _begin_term(self, leading: ElectionResult) -> None:
        """Load a new dispatcher. A long queue takes longer than the leader's lease, so that is renewed
        meanwhile."""
        self._drop_dispatcher()
        renewal = asyncio.get_running_loop().create_task(self._keep_lease(leading.fence))
        try:
            dispatcher = await self._loaded(leading)
        except NotLeading:
            dispatcher = None
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        if dispatcher is None or self.store.fenced.fence != leading.fence:
            return
        self.reaper = replace(self.reaper, paused_until_ms=0, removed_ms=())
        self.dispatcher = dispatcher
        self.deps.metrics.terms.inc()
        early, self._early_news = self._early_news, []
        dispatcher.handle_news(early)
        await self._read_news()
        if self.dispatcher is dispatcher:
            dispatcher.start()
        return

    async def _loaded(self, leading: ElectionResult) -> Dispatcher | None:
        began = time()
        if (snapshot := await self.store.snapshots.begin(self.store.timeouts.lease_ms)) is None:
            return None
        workers = await rows.load(self.store, snapshot.workers)
        if await self._disconnect_orphans(leading, workers):
            workers = await rows.load(self.store, snapshot.workers)
        dispatcher = Dispatcher(self.deps, invalidate=self._invalidate, linked=self.wake)
        async with contextlib.aclosing(self.store.snapshots.pages(snapshot)) as pages:
            with _without_collections():
                await dispatcher.load(pages, workers)
        took_s, tasks = round(time() - began, 3), len(dispatcher.tasks)
        log.info("leading", fence=leading.fence, tasks=tasks, workers=len(workers), load_s=took_s)
        return dispatcher

    async def _keep_lease(self, fence: Fence) -> None:
        """Renew leadership until cancelled. If that fails, drop the fence, which ends the loading."""
        while self.store.fenced.fence == fence:
            await asyncio.sleep(self.store.timeouts.leader_ms / 1000 / TERMS_PER_LEASE)
            try:
                leading = await self.store.leadership.campaign()
            except StoreError:
                return self._invalidate()
            self.clock.set(leading.now_ms)
            if leading.fence != fence:
                return self._invalidate()
        return None

    async def _read_news(self) -> None:
        """Pass news from the store to the dispatcher. Stop if it is dropped meanwhile: the next one starts
        from a snapshot."""
        while (dispatcher := self.dispatcher) is not None and (news := await self.store.leadership.news()):
            dispatcher.handle_news(news)

    async def _disconnect_orphans(self, leading: ElectionResult, workers: Mapping[str, WorkerState]) -> int:
        """Disconnect workers whose server died, because that server can no longer report it; return how many.
        Wait for one grace period if this process just reached the store: the servers may be coming back."""
        if time() - self.reached_since < self.store.timeouts.grace_ms / 1000:
            return 0
        orphans = [each for each in workers.values() if each.online and each.api not in leading.apis]
        for each in orphans:
            log.warning("a worker's server is gone", worker_id=each.hello.name, server=each.api)
            lost = Renewal(each.hello.name, each.epoch, each.connection)
            await self.store.workers.disconnect(lost, server_is_gone=True)
        return len(orphans)

    async def _reap(self, leading: ElectionResult) -> None:
        if not leading.expired and not self.reaper.removed_ms and not self.reaper.paused_until_ms:
            return
        pauses = self.reaper.pauses
        self.reaper, departures = self.reaper.judge(leading.expired, leading.workers, leading.now_ms)
        if self.reaper.pauses > pauses:
            self.deps.metrics.pauses.inc()
            log.warning(
                "most workers fell silent at once; nobody is taken off for one lease",
                over=len(leading.expired),
            )
        if departures:
            gone = await self.store.workers.expire(departures)
            self.deps.metrics.expired.inc(sum(gone))
            for each in compress(departures, gone):
                log.warning("worker taken off", worker_id=each.name, epoch=each.epoch, why=each.why)

    async def _recount(self) -> None:
        """Read from the store what owners used today; it decides whose tasks may start."""
        if time() - self._recounted > RECOUNT_EVERY_S:
            self._recounted = time()
            self.deps.quotas.used_s = (await self.store.usage.of()).used_s()
            if self.dispatcher is not None:
                self.dispatcher.recount()

    def _on_news(self, news: tuple[NewsItem, ...]) -> None:
        if self.dispatcher is not None:
            self.dispatcher.handle_news(news)
        else:
            self._early_news.extend(news)

    def _invalidate(self) -> None:
        """Drop the dispatcher, whose state may be wrong. No task is placed until a new snapshot is loaded."""
        if self.dispatcher is not None:
            log.warning("state may be wrong; loading the tasks again")
        self._drop_dispatcher()
        self.store.fenced.drop_fence()
        self._wake.set()

    def _drop_dispatcher(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.dispatcher = None
        self._early_news = []


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Look for no garbage meanwhile: of a hundred thousand tasks that are loaded none is, and each look at
    all of them costs more than the last."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
