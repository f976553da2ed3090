"""The manager of one process: what the routes call, and what runs behind them."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from time import monotonic

from prometheus_client.metrics_core import Metric

from gpu_orchestrator.adapters.outbound.addresses import Allowed
from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.database import Facts
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.shares import Usage
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.cluster import policies
from gpu_orchestrator.apps.cluster.audit import Audit
from gpu_orchestrator.apps.cluster.callbacks import Caller
from gpu_orchestrator.apps.cluster.callbacks import Terms as CallbackTerms
from gpu_orchestrator.apps.cluster.dispatch import Means
from gpu_orchestrator.apps.cluster.errors import NotFound
from gpu_orchestrator.apps.cluster.feed import Feed
from gpu_orchestrator.apps.cluster.intake import Intake
from gpu_orchestrator.apps.cluster.keyring import Keyring
from gpu_orchestrator.apps.cluster.keys import Keys
from gpu_orchestrator.apps.cluster.leader import Leader, StoreClock
from gpu_orchestrator.apps.cluster.listener import Listener
from gpu_orchestrator.apps.cluster.metrics import Metrics, gauge
from gpu_orchestrator.apps.cluster.outcomes import Outcomes
from gpu_orchestrator.apps.cluster.overview import Overview
from gpu_orchestrator.apps.cluster.owners import Owners
from gpu_orchestrator.apps.cluster.reaper import Guard
from gpu_orchestrator.apps.cluster.sessions import Sessions
from gpu_orchestrator.apps.cluster.signing import Signing
from gpu_orchestrator.apps.cluster.tally import Tally
from gpu_orchestrator.apps.cluster.terms import SessionTerms
from gpu_orchestrator.apps.cluster.translate import Memory
from gpu_orchestrator.apps.cluster.waiters import Waiters, within
from gpu_orchestrator.apps.cluster.wires import Polls

LOOK_AGAIN_S = 2.0
"""Whoever waits for a task looks for himself this often, should word of its end be lost."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a manager stands on."""

    settings: Settings
    store: Store
    facts: Facts
    keys: Keys
    seal: Seal


class Manager:
    def __init__(self, ground: Ground) -> None:
        settings, store = ground.settings, ground.store
        self.settings, self.store, self.facts, self.keys = settings, store, ground.facts, ground.keys
        self.signing = Signing(store.database, ground.seal, settings.callback_secret)
        self.started = monotonic()
        self.metrics = Metrics()
        self.audit = Audit(store.audit, self.metrics.audit_dropped)
        self.memory = Memory(settings.gpu_memory_threshold, settings.gpu_memory_headroom)
        self.registry = policies.registry(settings.placement_policy)
        self.chance = Random()  # noqa: S311 - settles ties
        self.waiters = Waiters()
        self.outcomes = Outcomes(store, self.metrics, self.waiters)
        self.overview = Overview(store, self.memory, settings.max_store_mb)
        self.sessions = Sessions(store, self.outcomes, SessionTerms.of(settings), self.overview.expire)
        self.polls = Polls(self.sessions.serve, settings.worker_lease)
        self.feed = Feed(store.events, settings.max_watchers)
        self.keyring = Keyring(store, self.keys, self._keys_changed)
        self.allowed = Allowed.of(settings.callback_hosts, settings.callback_networks)
        self.owners = Owners(settings)
        clock = StoreClock()
        self.tally = Tally(store.shares, settings, self.metrics, clock.now)
        self.leader = Leader(self._means(clock), clock, Guard(store.terms.lease_ms))
        terms = CallbackTerms(self.signing.find, self.allowed)
        self.caller = Caller(store.callbacks, terms, self.metrics, lambda: self.leader.leads)
        self.admission = Intake(self.leader.submit)
        self._behind: list[asyncio.Task[None]] = []
        self.metrics.collect_from(self._gauges)

    async def start(self) -> None:
        listener = Listener(
            self.store,
            wake=self.leader.wake,
            letter=self.sessions.deliver,
            ended=self.waiters.ended,
            keys=self.keyring.wake,
        )
        await self.keyring.refresh()
        await self.store.events.keep(self.settings.events_kept)
        loop = asyncio.get_running_loop()
        behind = (self.leader, listener, self.keyring, self.tally, self.audit, self.caller)
        self._behind = [loop.create_task(each.run()) for each in behind]

    async def stop(self) -> None:
        """What workers have said is stored before the leader steps down."""
        await self.part()
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(2.0):
                await self.outcomes.close()
                await self.keyring.write_used()
                await self.audit.flush()
        for each in self._behind:
            each.cancel()
        await asyncio.gather(*self._behind, return_exceptions=True)

    def _keys_changed(self) -> None:
        self.owners.follow(self.keys)
        self.sessions.part_from(lambda key: not self.keys.is_good(key))
        self.feed.part_from(lambda key: not self.keys.is_good(key), "this key may no longer be used")

    async def part(self) -> None:
        """Say goodbye to all who are connected for long."""
        self.feed.part_from(lambda _: True, "the server ends; resume from the last id")
        await self.sessions.close()

    async def row(self, name: str, owner: str = "") -> Row:
        """A task of this owner; without one, anybody's. That others' tasks are there is not even said."""
        (row,) = await self.store.tasks.fetch([name])
        if row is None or (owner and row.get("tenant") != owner):
            raise NotFound(
                f"there is no task {name}; ended tasks are kept for {self.settings.task_retention:g} s"
            )
        return row

    async def wait(self, name: str, timeout_s: float) -> Row:
        """The task's row when it has ended, or as it is when time is up."""
        deadline = monotonic() + timeout_s
        while True:
            ended = self.waiters.join(name)
            try:
                if not self._runs_here(name) and (row := await self.row(name))["state"] in task.FINAL:
                    return row
                left_s = deadline - monotonic()
                if left_s > 0 and (told := await within(ended, min(left_s, LOOK_AGAIN_S))):
                    return told
            finally:
                self.waiters.leave(name, ended)
            if left_s <= 0:
                return await self.row(name)

    async def held_back(self, owner: str) -> str:
        """Why no task of this owner may begin now, or empty."""
        return self.owners.held_back(owner, (await self.usage(owner)).active)

    async def usage(self, owner: str) -> Usage:
        """What an owner has now of what it may."""
        usage = await self.store.shares.usage(owner)
        self.owners.used_s = usage.used_s()
        return usage

    def _runs_here(self, name: str) -> bool:
        """Whether its end will be heard of here without asking the store."""
        dispatcher = self.leader.dispatcher
        return dispatcher is not None and name in dispatcher.tasks

    async def ready(self) -> str:
        """Empty when tasks can be taken and placed, else what is missing; strangers are told."""
        try:
            await self.store.database.ping()
        except StoreError:
            return "the store does not answer"
        return "" if self.leader.leader else "nobody leads yet"

    def _means(self, clock: StoreClock) -> Means:
        return Means(
            self.store,
            lambda worker, assign: self.sessions.to(worker.hello.name, worker.api, assign, worker.epoch),
            self.registry,
            self.memory,
            self.metrics,
            clock.now,
            self.owners,
        )

    def _gauges(self) -> Iterable[Metric]:
        yield gauge("workers_connected", "Workers connected to this process", [], [([], len(self.sessions))])
        yield gauge("watchers", "Clients that watch events at this process", [], [([], len(self.feed))])
        dispatcher = self.leader.dispatcher
        yield gauge("leader", "1 if this process leads", [], [([], float(dispatcher is not None))])
        if dispatcher is None:
            return
        depth = dispatcher.depth()
        waiting = [([str(priority)], float(count)) for priority, count in depth.waiting.items()]
        yield gauge("queue_depth", "Waiting tasks", ["priority"], waiting)
        for name, text, counted in (
            ("owner_tasks_queued", "Waiting tasks of each owner", depth.waiting_of),
            ("owner_tasks_running", "Tasks of each owner that were given to a worker", depth.running_of),
            ("owner_gpu_seconds_today", "GPU seconds of each owner, of what ended today", self.owners.used_s),
        ):
            yield gauge(name, text, ["owner"], [([owner], float(n)) for owner, n in counted.items()])
        yield from self.overview.device_gauges(dispatcher.workers, dispatcher.engine.cluster)
