"""The manager of one process: builds its parts, runs the background loops, and serves the routes.

`server` starts and stops it. The routes reach every part through its attributes.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.broker.address import Broker
from gpu_orchestrator.adapters.outbound.addresses import Allowed
from gpu_orchestrator.adapters.seal import Seal
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Loading, StoreError
from gpu_orchestrator.adapters.store.records import Renewal, Unit
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.adapters.store.usage import Usage
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from gpu_orchestrator.adapters.store.valkey.facts import Facts
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.units import MIB, show_seconds
from gpu_orchestrator.apps.manager import task_schema, views
from gpu_orchestrator.apps.manager.access.audit import Audit
from gpu_orchestrator.apps.manager.access.connections import Connections
from gpu_orchestrator.apps.manager.access.key_sync import KeySync
from gpu_orchestrator.apps.manager.access.keys import Keys
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.access.rate_limiter import RateLimiter
from gpu_orchestrator.apps.manager.autoscale.scaler import Scaler, ScalerDeps
from gpu_orchestrator.apps.manager.dispatch.dispatcher import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.leader import Leader, StoreClock
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper
from gpu_orchestrator.apps.manager.errors import Conflict, NotFound
from gpu_orchestrator.apps.manager.events.callbacks import CallbackConfig, CallbackSender
from gpu_orchestrator.apps.manager.events.event_feed import Feed
from gpu_orchestrator.apps.manager.events.signing import Signing
from gpu_orchestrator.apps.manager.fleet import model_words, past_attempts, strategies
from gpu_orchestrator.apps.manager.fleet.device_gauges import DeviceGauges
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import Hints, MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics, gauge
from gpu_orchestrator.apps.manager.models.model_sync import ModelSync
from gpu_orchestrator.apps.manager.models.rebalance_schema import Rebalance
from gpu_orchestrator.apps.manager.schedules.firing import Chore
from gpu_orchestrator.apps.manager.siblings import ParentsStore, Place, Siblings
from gpu_orchestrator.apps.manager.tasks.admission import Admission
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters, within
from gpu_orchestrator.apps.manager.tasks.files import Files
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.tasks.overview import FRESH_S, Overview
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

RECHECK_S = 2.0
"""A waiting request reads the task from the store this often, in case the message about its end is lost."""

ID_LENGTH, SHORTEST_START, MOST_CANDIDATES = 32, 4, 10
"""Characters of a task's id; how few of them may stand for it; how many tasks an ambiguous start names."""
_START = re.compile(r"[0-9A-Za-z_-]+")


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
        self.task_logs = TaskLogs(store, settings.task_logs_mb, settings.max_store_mb, self.disk_shortage)
        self.task_values = TaskValues(store, self.task_logs.allowed_bytes, self.disk_shortage)
        is_durable = settings.durability == "strict" or not deps.facts.durable
        self.results = Results(settings, sync=is_durable)
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
        self.overview = Overview(store, self.memory, settings.max_store_mb)
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
        chore = Chore(store, self.metrics, self._unit_of, self.shortage)
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
        )
        self.worker_list = WorkerList(store.workers, self.memory)
        self._device_gauges = DeviceGauges(self.memory)
        self.siblings = Siblings(deps.place, self._own_gauges) if deps.place else None
        self.rebalances = BackgroundTasks()
        self.rebalance: Rebalance | None = None
        """The latest that this process began."""
        self._background: list[asyncio.Task[None]] = []
        self.metrics.collect_from(self._gauges)

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

    async def full_id(self, start: str, owner: str = "") -> str:
        """Return the id of the one task of this owner, or of any if none is given, that begins like this."""
        if len(start) >= ID_LENGTH or (await self.store.tasks.fetch([start]))[0]:
            return start
        found: list[str] = []
        if len(start) >= SHORTEST_START and _START.fullmatch(start):
            found = await self.store.tasks.find(start, owner=owner, most=MOST_CANDIDATES + 1)
        if len(found) > 1:
            shown = sorted(found)[:MOST_CANDIDATES]
            more = " and more" if len(found) > MOST_CANDIDATES else ""
            raise Conflict(
                f"{len(shown)} tasks{more} begin with {start}; give more characters of the id", task_ids=shown
            )
        return found[0] if found else start  # of an unknown task, the caller says so

    async def statuses(self, rows: Mapping[str, Row]) -> list[task_schema.TaskStatus]:
        """Return tasks as the API shows them, with reason and position of those that wait."""
        waits = await self.waiting.of(rows)
        return [views.task_status(name, row, waits.get(name, views.NO_WAIT)) for name, row in rows.items()]

    async def row(self, name: str, owner: str = "") -> Row:
        """Return the row of a task of this owner, or of any owner if none is given.

        A task of another owner is reported as missing, so that its existence does not leak.
        """
        (row,) = await self.store.tasks.fetch([name], results=True)
        if row is None or (owner and row.get("tenant") != owner):
            raise self.no_task(name)
        return row

    def no_task(self, name: str) -> NotFound:
        kept = show_seconds(self.settings.task_retention)
        why = f", and less just now: {forgetting}" if (forgetting := self.retention.forgetting) else ""
        return NotFound(f"there is no task {name}; ended tasks are kept for {kept}{why}")

    async def wait(self, name: str, timeout_s: float) -> Row:
        """Return the task's row once the task has ended, or its current row after `timeout_s`."""
        deadline = monotonic() + timeout_s
        while True:
            ended = self.waiters.join(name)
            try:
                if (
                    not self._runs_here(name)
                    and (row := await self._durable_row(name))["state"] in task.FINAL
                ):
                    return row
                left_s = deadline - monotonic()
                if left_s > 0 and (final := await within(ended, min(left_s, RECHECK_S))):
                    return final
            finally:
                self.waiters.leave(name, ended)
            if left_s <= 0:
                return await self.row(name)

    async def _durable_row(self, name: str) -> Row:
        """Return the row of a task. With DURABILITY=strict, an end is shown once a failover cannot undo
        it."""
        history = await self.store.database.begin()
        row = await self.row(name)
        if row["state"] in task.FINAL:
            await self.store.database.durable(history, int(row.get("finished", 0)))
        return row

    async def durable_rows(self, names: Sequence[str]) -> list[Row | None]:
        """Return the rows of many tasks, results only of those that have ended; None for a missing task."""
        history = await self.store.database.begin()
        rows = await self.store.tasks.fetch(names)
        ended = [at for at, row in enumerate(rows) if row and row["state"] in task.FINAL]
        whole = await self.store.tasks.fetch([names[at] for at in ended], results=True)
        for at, row in zip(ended, whole, strict=True):
            rows[at] = row
        if latest := max((int(row.get("finished", 0)) for row in whole if row), default=0):
            await self.store.database.durable(history, latest)
        return rows

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

    def _runs_here(self, name: str) -> bool:
        """Return True if this process leads and will see the task end without reading the store."""
        dispatcher = self.leader.dispatcher
        return dispatcher is not None and name in dispatcher.tasks

    async def ready(self) -> str:
        """Return what is missing to accept and place tasks; empty if nothing is.

        The health routes show this text without a key, so it must not name addresses.
        """
        try:
            await self.store.database.ping()
        except Loading as error:
            return error.progress
        except StoreError:
            return (self.embedded.trouble if self.embedded else "") or "the store does not answer"
        if trouble := self.store.database.trouble:
            return f"the store cannot make changes durable: {trouble}"
        return "" if self.leader.leader else "no process leads yet"

    def weakness(self) -> str:
        """Return how acknowledged changes may be lost; empty if they cannot, as far as is known."""
        database = self.store.database
        return self.facts.weakness(strict=database.strict, durable_replicas=database.replicas)

    def disk_shortage(self) -> str:
        """Return what is wrong with the disk of the embedded store, or of the results; empty if there is
        room."""
        store = self.embedded.disk.shortage() if self.embedded else ""
        return store or self.results.disk_shortage()

    def shortage(self) -> str:
        """Return why no task can be queued now; empty if there is room."""
        if (room := self.overview.reserve_memory(0)) is not None:
            return f"the store uses {room.used // MIB} of at most {room.most // MIB} MiB"
        return self.disk_shortage()

    def _unit_of(self, owner: str) -> Unit:
        """Return the limits of an owner's schedules."""
        may = self.quotas.may(owner)
        return Unit(owner, may.queued, self.settings.max_queued_tasks, may.gpu_seconds * 1000)

    async def cluster(self) -> Cluster:
        """Return the cluster: the leader's own, or else one read from the store, at most a second old."""
        if self.leader.dispatcher is not None:
            return self.leader.dispatcher.engine.cluster
        return (await self.overview.cluster(at_most_old_s=FRESH_S))[1]

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
        )

    def _deliver_filled(self, worker: WorkerState, assign: session.Assign) -> None:
        name, epoch = worker.hello.name, worker.epoch
        self.outcomes.send_filled(
            Renewal(name, epoch, ""),
            assign,
            lambda filled: self.sessions.send(name, worker.api, filled, epoch),
        )

    async def scraped(self) -> bytes:
        """Return all metrics as text: those of this process, or the sums of all its siblings."""
        if self.siblings is not None:
            return await self.siblings.metrics()
        gauges = b"".join(await self._own_gauges())
        return generate_latest(self.metrics.registry) + gauges

    async def _own_gauges(self) -> tuple[bytes, bytes]:
        """Return the gauges of this process, and of all devices if it leads, as text."""
        self.metrics.write()
        dispatcher, devices = self.leader.dispatcher, ""
        if dispatcher is not None:
            devices = await self._device_gauges.text(dispatcher.workers, dispatcher.engine.cluster)
        return generate_latest(self.metrics.gauges), devices.encode()

    def _gauges(self) -> Iterable[Metric]:
        yield gauge("workers_connected", [([], len(self.sessions))])
        connections = self.connections
        kinds = [(["known"], float(connections.known)), (["stranger"], float(connections.strangers))]
        yield gauge("http_connections", kinds)
        yield gauge("watchers", [([], len(self.feed))])
        wanted, wait_s = self.scaler.gauges()
        yield gauge("scale_wanted_workers", [([], float(wanted))])
        yield gauge("scale_predicted_wait_seconds", [([], wait_s)])
        dispatcher = self.leader.dispatcher
        yield gauge("leader", [([], float(dispatcher is not None))])
        if dispatcher is None:
            return
        depth = dispatcher.depth()
        waiting = [([str(priority)], float(count)) for priority, count in depth.waiting.items()]
        yield gauge("queue_depth", waiting)
        for name, counted in (
            ("owner_tasks_queued", depth.waiting_of),
            ("owner_tasks_running", depth.running_of),
            ("owner_gpu_seconds_today", self.quotas.used_s),
        ):
            yield gauge(name, [([owner], float(n)) for owner, n in counted.items()])


def _publisher(broker: Broker | None, metrics: Metrics) -> "Publisher | None":
    """Return what sends tickets to workers by Celery. Celery is an extra: import it only if it is used."""
    if broker is None:
        return None
    from gpu_orchestrator.adapters.broker.publisher import Publisher

    return Publisher(broker, metrics.tickets_lost.inc)
