"""The manager of one process: builds its parts, runs the background loops, and serves the routes.

`server` starts and stops it. The routes reach every part through its attributes.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.broker.address import Broker
from gpu_orchestrator.adapters.outbound.addresses import Allowed
from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import Renewal, Unit
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.usage import Usage
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from gpu_orchestrator.adapters.store.valkey.facts import Facts
from gpu_orchestrator.api import session, task
from gpu_orchestrator.apps.manager.access.audit import Audit
from gpu_orchestrator.apps.manager.access.connections import Connections
from gpu_orchestrator.apps.manager.access.key_sync import KeySync
from gpu_orchestrator.apps.manager.access.keys import Keys
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.access.rate_limiter import RateLimiter
from gpu_orchestrator.apps.manager.autoscale.scaler import Scaler, ScalerDeps
from gpu_orchestrator.apps.manager.dispatch import reserving
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.leader import Leader, StoreClock
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper
from gpu_orchestrator.apps.manager.events.callbacks import CallbackConfig, CallbackSender
from gpu_orchestrator.apps.manager.events.event_feed import Feed
from gpu_orchestrator.apps.manager.events.signing import Signing
from gpu_orchestrator.apps.manager.fleet import kept_places, model_words, past_attempts, strategies
from gpu_orchestrator.apps.manager.fleet.device_gauges import DeviceGauges
from gpu_orchestrator.apps.manager.fleet.kept_places import KeptPlace
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import Hints, MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.models.model_sync import ModelSync
from gpu_orchestrator.apps.manager.models.rebalance_schema import Rebalance
from gpu_orchestrator.apps.manager.readiness import Readiness
from gpu_orchestrator.apps.manager.schedules.firing import Chore
from gpu_orchestrator.apps.manager.scrape import Scrape
from gpu_orchestrator.apps.manager.siblings import ParentsStore, Place, Siblings
from gpu_orchestrator.apps.manager.tasks.admission import Admission
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.files import Files
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.tasks.overview import FRESH_S, Overview
from gpu_orchestrator.apps.manager.tasks.reading import TaskReader
from gpu_orchestrator.apps.manager.tasks.results import Results
from gpu_orchestrator.apps.manager.tasks.retention import Bounds, Retention
from gpu_orchestrator.apps.manager.tasks.service_times import ServiceTimes
from gpu_orchestrator.apps.manager.tasks.task_logs import TaskLogs
from gpu_orchestrator.apps.manager.tasks.task_values import TaskValues
from gpu_orchestrator.apps.manager.tasks.waiting import Waiting
from gpu_orchestrator.apps.manager.worker_list import WorkerList
from gpu_orchestrator.apps.manager.workers.listener import Listener
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.sessions import Sessions
from gpu_orchestrator.apps.manager.workers.tickets import Celery
from gpu_orchestrator.apps.manager.workers.transports import Polls
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.engine.models import ModelRules

if TYPE_CHECKING:
    from gpu_orchestrator.adapters.broker.publisher import Publisher


@dataclass(frozen=True, slots=True)
class ManagerDeps:
    """Everything that a manager is built from. `embedded` is the store's process, if this process or its
    parent runs it. `place`: this is one of several processes. `callback_secret` signs if none is configured
    and no other server of this store has one. `broker`: workers may receive their tasks by Celery."""

    settings: Settings
    store: Store
    facts: Facts
    keys: Keys
    seal: Seal
    connections: Connections
    embedded: Embedded | ParentsStore | None = None
    place: Place | None = None
    callback_secret: str = ""
    broker: Broker | None = None


class Manager:
    def __init__(self, deps: ManagerDeps) -> None:
        settings, store = deps.settings, deps.store
        self.settings, self.store, self.facts, self.keys = settings, store, deps.facts, deps.keys
        self.embedded, self.connections = deps.embedded, deps.connections
        self.signing = Signing.of(settings, store.database, deps.seal, deps.callback_secret)
        self.started = monotonic()
        self.metrics = Metrics(at_once=deps.place is not None)
        self.connections.on_closed = lambda reason: self.metrics.connections_closed.labels(reason).inc()
        self.audit = Audit(store.audit, self.metrics.audit_dropped)
        self.memory = MemoryPolicy(settings.gpu_memory_threshold, settings.gpu_memory_headroom)
        self.registry = strategies.registry(settings.placement_policy)
        self.chance = Random()  # noqa: S311 - breaks ties
        self.waiters = CompletionWaiters()
        is_durable = settings.durability == "strict" or not deps.facts.durable
        self.results = Results(settings, sync=is_durable)
        self.overview = Overview(store, self.memory, settings.max_store_mb)
        self.readiness = Readiness(
            store, deps.facts, deps.embedded, self.results, self.overview, lambda: self.leader.leader
        )
        disk_shortage = self.readiness.disk_shortage
        self.task_logs = TaskLogs(store, settings.task_logs_mb, settings.max_store_mb, disk_shortage)
        self.task_values = TaskValues(store, self.task_logs.allowed_bytes, disk_shortage)
        self.models = ModelBook()
        self.cold_loads: dict[str, str] = {}
        """By model, the newest task that loads it because a client would not wait (`http/cold_start.py`)."""
        self.model_sync = ModelSync(store.models, self.models, self._models_changed)
        self.files = Files(store, self.results, settings)
        self.outcomes = Outcomes(
            store, self.metrics, self.waiters, self.task_logs, self.results, self.task_values, self.models
        )
        self.retention = Retention(
            store, self.results, Bounds.of(settings), self.metrics, lambda: self.leader.leads
        )
        self.publisher = _publisher(deps.broker, self.metrics)
        self.sessions = Sessions(
            store,
            self.outcomes,
            SessionConfig.of(settings),
            self.overview.expire,
            Celery(self.publisher.publish, lambda reason: self.metrics.tickets_void.labels(reason).inc())
            if self.publisher
            else None,
            self.models.pins_on,
        )
        self.polls = Polls(self.sessions, settings.worker_lease)
        self.feed = Feed(store.events, settings.max_watchers)
        self.key_sync = KeySync(store, self.keys, self._keys_changed)
        self.allowed = Allowed.of(settings.callback_hosts, settings.callback_networks)
        self.quotas = Quotas(settings)
        clock = StoreClock()
        self.rate_limiter = RateLimiter(store.usage, settings, self.metrics, clock.now)
        self.service_times = ServiceTimes()
        chore = Chore(store, self.metrics, self._unit_of, self.readiness.shortage)
        self.leader = Leader(self._deps(clock), clock, Reaper(store.timeouts.lease_ms), chore.do)
        self.scaler = Scaler(
            ScalerDeps(
                settings,
                store,
                self.leader,
                self.metrics,
                self.audit,
                self.sessions.send,
                self.service_times,
            )
        )
        callback_config = CallbackConfig(self.signing.find, self.allowed, whole=self.results.whole)
        self.callback_sender = CallbackSender(
            store.callbacks, callback_config, self.metrics, lambda: self.leader.leads
        )
        self.admission = Admission(self.leader.submit)
        self.waiting = Waiting(
            store.tasks,
            self.registry,
            self.cluster,
            self.held_back,
            self._hints_of,
            self.models.memory_mib,
            lambda model: model_words.why_it_waits(model, self.overview.workers.values()),
            self.kept_places,
        )
        self.tasks = TaskReader(
            store,
            self.waiting,
            self.waiters,
            settings.task_retention,
            lambda: self.retention.forgetting,
            lambda name: self.leader.dispatcher is not None and name in self.leader.dispatcher.tasks,
        )
        self.worker_list = WorkerList(store.workers, self.memory)
        self.scrape = Scrape(
            self.metrics,
            self.leader,
            self.sessions,
            self.connections,
            self.feed,
            self.scaler,
            self.quotas,
            DeviceGauges(self.memory),
        )
        self.siblings = self.scrape.siblings = Siblings(deps.place, self.scrape.own) if deps.place else None
        self.rebalances = BackgroundTasks()
        self.rebalance: Rebalance | None = None
        """The latest that this process began."""
        self._background: list[asyncio.Task[None]] = []
        self.metrics.collect_from(self.scrape.gauges)

    async def start(self) -> None:
        listener = Listener(
            self.store,
            wake=self.leader.wake,
            forwarded=self.sessions.deliver,
            ended=self.waiters.ended,
            keys=self.key_sync.wake,
            models=self.model_sync.wake,
            values=self.task_values.followers.wake,
        )
        await self.key_sync.refresh()
        await self.model_sync.refresh()
        self.results.use_folder(await self.store.results.folder())
        await self.store.events.keep(self.settings.events_kept)
        if self.publisher is not None:
            self.publisher.start()
        loop = asyncio.get_running_loop()
        loops = (
            self.leader,
            listener,
            self.key_sync,
            self.model_sync,
            self.rate_limiter,
            self.audit,
            self.callback_sender,
            self.task_logs,
            self.retention,
            self.scaler,
        )
        self._background = [loop.create_task(each.run()) for each in loops]

    async def stop(self) -> None:
        """Store what the workers have reported, then end the background loops, the leader among them."""
        await self.disconnect_clients()
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(2.0):
                await self.outcomes.close()
                await self.key_sync.write_used()
                await self.audit.flush()
        self.rebalances.cancel()
        await self.rebalances.finish()
        for each in self._background:
            each.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.results.close()
        if self.publisher is not None:
            await asyncio.to_thread(self.publisher.close)
        self.metrics.write()

    def _keys_changed(self) -> None:
        self.quotas.refresh(self.keys)
        self.sessions.disconnect_keys(lambda key: not self.keys.is_good(key))
        self.feed.disconnect(lambda key: not self.keys.is_good(key), "this key may no longer be used")

    def _models_changed(self) -> None:
        self.sessions.tell_pins()
        if self.leader.dispatcher is not None:
            self.leader.dispatcher.models_changed()

    async def disconnect_clients(self) -> None:
        """Close all long-lived connections: watchers of events and sessions of workers."""
        self.feed.disconnect(lambda _: True, "the server is shutting down; resume from the last id")
        await self.sessions.close()

    async def held_back(self, owner: str) -> str:
        """Return why no task of this owner may start now; empty if one may."""
        if (most := self.retention.most_active) is not None:
            return (
                f"the store is nearly full: at most {most} tasks run at once until there is room for results"
            )
        return self.quotas.held_back(owner, (await self.usage(owner)).active)

    async def usage(self, owner: str) -> Usage:
        """Return what an owner uses now, and pass today's GPU seconds of all owners to the quotas."""
        usage = await self.store.usage.of(owner)
        self.quotas.used_s = usage.used_s()
        return usage

    def _unit_of(self, owner: str) -> Unit:
        """Return the limits of an owner's schedules."""
        may = self.quotas.may(owner)
        return Unit(owner, may.queued, self.settings.max_queued_tasks, may.gpu_seconds * 1000)

    async def cluster(self) -> Cluster:
        """Return the cluster: the leader's own, or else one read from the store, at most a second old. Places
        that are kept count as taken."""
        if self.leader.dispatcher is not None:
            return self.leader.dispatcher.engine.cluster
        _, cluster = await self.overview.cluster(at_most_old_s=FRESH_S)
        return kept_places.beside(cluster, await self.kept_places())

    async def kept_places(self) -> Sequence[KeptPlace]:
        """Return the places that are kept for tasks and gangs that smaller ones would pass."""
        if self.leader.dispatcher is not None:
            return self.leader.dispatcher.kept_places()
        if not self.settings.reservations:
            return ()
        return kept_places.read(await self.store.kept_places.read(), self.leader.clock.now())

    def _hints_of(self, spec: task.TaskSpec, deaths: str) -> Hints:
        workers = self.leader.dispatcher.workers if self.leader.dispatcher else self.overview.workers
        return past_attempts.hints(spec, past_attempts.deaths_of(deaths), workers, self.memory)

    def _deps(self, clock: StoreClock) -> DispatcherDeps:
        return DispatcherDeps(
            self.store,
            lambda worker, assign: self.sessions.send(worker.hello.name, worker.api, assign, worker.epoch),
            self.registry,
            self.memory,
            self.metrics,
            clock.now,
            self.quotas,
            self.waiters.ended,
            lambda: self.retention.most_active,
            self._deliver_filled,
            self.models,
            ModelRules(max_wait_s=self.settings.model_max_wait, min_loaded_s=self.settings.model_min_loaded),
            lambda worker: self.model_sync.reported([worker]),
            self.settings.model_preload,
            lambda worker, message: self.sessions.send(worker.hello.name, worker.api, message, worker.epoch),
            self.service_times,
            reserving.rules(self.settings, clock.now),
        )

    def _deliver_filled(self, worker: WorkerState, assign: session.Assign) -> None:
        name, epoch = worker.hello.name, worker.epoch
        self.outcomes.send_filled(
            Renewal(name, epoch, ""),
            assign,
            lambda filled: self.sessions.send(name, worker.api, filled, epoch),
        )


def _publisher(broker: Broker | None, metrics: Metrics) -> "Publisher | None":
    """Return what sends tickets to workers by Celery. Celery is an extra: import it only if it is used."""
    if broker is None:
        return None
    from gpu_orchestrator.adapters.broker.publisher import Publisher

    return Publisher(broker, metrics.tickets_lost.inc)
