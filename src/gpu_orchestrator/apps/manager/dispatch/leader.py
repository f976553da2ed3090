"""The term of a leader: strives to lead, and while it does keeps the dispatcher and takes off the dead.

following ──strive──▶ leading, no dispatcher ──snapshot──▶ leading
    ▲                          ▲                              │ an answer was lost, news was missed
    └──── another leads ───────┴──────── in doubt ◀───────────┘
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from time import time

import structlog

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import Leading, NewTask, Renewal, Submitted, Told, Unit
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher, DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.maintenance import Maintenance
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState

log = structlog.get_logger()

TERMS_PER_LEASE = 3
STORE_PAUSE_S = 0.2
RESIGN_S = 2.0
RECOUNT_EVERY_S = 1.0


@dataclass(slots=True)
class StoreClock:
    """The store's clock, in seconds, as far as we know it: ours and how much it was off the last time."""

    off_s: float = 0.0

    def now(self) -> float:
        return time() + self.off_s

    def set(self, store_ms: int) -> None:
        self.off_s = store_ms / 1000 - time()


@dataclass(slots=True)
class Leader:
    deps: DispatcherDeps
    clock: StoreClock
    reaper: Reaper
    dispatcher: Dispatcher | None = None
    leader: str = ""
    reached_since: float = 0.0
    _early: list[Told] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _recounted: float = 0.0
    _reached: bool = False
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
        """There may be news."""
        self._wake.set()

    def submit(
        self, tasks: Sequence[NewTask], units: Sequence[Unit], unit_of: Sequence[int]
    ) -> Awaitable[Sequence[Submitted]]:
        """Take new tasks: by the dispatcher if this process leads, else only into the store."""
        return (self.dispatcher or self.store.tasks).submit(tasks, units, unit_of)

    async def run(self) -> None:
        """For ever; cancelled, it steps down so that another takes over at once."""
        self.store.fenced.attach(self._hear, self._doubt)
        try:
            while True:
                await self._round()
        finally:
            self._drop()
            with contextlib.suppress(StoreError, TimeoutError):  # then its term runs out
                async with asyncio.timeout(RESIGN_S):
                    await self.store.leadership.resign()

    async def _round(self) -> None:
        try:
            await self._strive()
        except StoreError as error:
            if self._reached:
                log.warning("the store does not answer", error=str(error))
            self._reached, self.reached_since = False, 0.0
            await self._fail()
        except Exception:
            log.exception("a round of the leader failed")
            await self._fail()
        else:
            self._reached = True
            await wait_until_set(self._wake, self.store.timeouts.leader_ms / 1000 / TERMS_PER_LEASE)
            self._wake.clear()

    async def _fail(self) -> None:
        """Doubt wakes us, but not from this pause: else we would ask for ever without letting others work."""
        self._doubt()
        await asyncio.sleep(STORE_PAUSE_S)

    async def _strive(self) -> None:
        fence = self.store.fenced.fence
        leading = await self.store.leadership.strive()
        self.leader, self.reached_since = leading.owner, self.reached_since or time()
        self.clock.set(leading.now_ms)
        if not leading.fence:
            return self._drop()
        if self.dispatcher is None or leading.fence != fence:
            await self._begin(leading)  # which prolongs leases: those are not over any more
        else:
            await self._read_news()
            await self._reap(leading)
        if self.dispatcher is not None:
            await self._part_orphans(leading, self.dispatcher.workers)
        await self._recount()
        if self.dispatcher is not None:
            await self._maintenance.do(self.dispatcher.workers.values())
        return None

    async def _begin(self, leading: Leading) -> None:
        self._drop()
        snapshot = await self.store.tasks.snapshot(self.store.timeouts.lease_ms)
        if snapshot is None:
            return
        workers = await rows.load(self.store, snapshot.workers)
        if await self._part_orphans(leading, workers):
            workers = await rows.load(self.store, snapshot.workers)
        dispatcher = Dispatcher(self.deps, in_doubt=self._doubt)
        dispatcher.load(snapshot, workers)
        self.reaper = replace(self.reaper, believes_from_ms=0, taken_ms=())
        self.dispatcher = dispatcher
        self.deps.metrics.terms.inc()
        log.info("leading", fence=leading.fence, tasks=len(snapshot.tasks), workers=len(snapshot.workers))
        early, self._early = self._early, []
        dispatcher.hear(early)
        await self._read_news()

    async def _read_news(self) -> None:
        """One that is dropped meanwhile listens no more, and the next begins with everything there is."""
        while (dispatcher := self.dispatcher) is not None and (news := await self.store.leadership.news()):
            dispatcher.hear(news)

    async def _part_orphans(self, leading: Leading, workers: Mapping[str, WorkerState]) -> int:
        """Workers whose server died have lost their connection, though nobody was left to say so. Whoever was
        away or is new here rather waits: they may be on their way back."""
        if time() - self.reached_since < self.store.timeouts.grace_ms / 1000:
            return 0
        orphans = [each for each in workers.values() if each.online and each.api not in leading.apis]
        for each in orphans:
            log.warning("a worker's server is gone", worker_id=each.hello.name, server=each.api)
            await self.store.workers.disconnect(Renewal(each.hello.name, each.epoch, each.connection))
        return len(orphans)

    async def _reap(self, leading: Leading) -> None:
        if not leading.over and not self.reaper.taken_ms and not self.reaper.believes_from_ms:
            return
        pauses = self.reaper.pauses
        self.reaper, departures = self.reaper.judge(leading.over, leading.workers, leading.now_ms)
        if self.reaper.pauses > pauses:
            self.deps.metrics.pauses.inc()
            log.warning(
                "most workers fell silent at once; nobody is taken off for one lease", over=len(leading.over)
            )
        if departures:
            gone = await self.store.workers.expire(departures)
            self.deps.metrics.expired.inc(sum(gone))
            for each in compress(departures, gone):
                log.warning("worker taken off", worker_id=each.name, epoch=each.epoch, why=each.why)

    async def _recount(self) -> None:
        """What owners have used today; it tells whose tasks may begin."""
        if time() - self._recounted > RECOUNT_EVERY_S:
            self._recounted = time()
            self.deps.quotas.used_s = (await self.store.usage.of()).used_s()
            if self.dispatcher is not None:
                self.dispatcher.recount()

    def _hear(self, news: tuple[Told, ...]) -> None:
        if self.dispatcher is not None:
            self.dispatcher.hear(news)
        else:
            self._early.extend(news)

    def _doubt(self) -> None:
        """What we believe may be wrong: nothing more is decided until everything was looked at anew."""
        if self.dispatcher is not None:
            log.warning("in doubt; looking at everything anew")
        self._drop()
        self.store.fenced.drop_fence()
        self._wake.set()

    def _drop(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.dispatcher = None
        self._early = []
