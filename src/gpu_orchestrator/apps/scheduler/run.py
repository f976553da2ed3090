"""The scheduler as a process: servers up, copies warm, leader elected, work done, signals heard, a clean way
out. What we know is rebuilt from the API server whenever we begin to lead; nothing is kept anywhere else."""

import asyncio
import random
import signal
from contextlib import AsyncExitStack
from importlib.metadata import entry_points

import structlog

from gpu_orchestrator.adapters import serving
from gpu_orchestrator.adapters.kube import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, Times, unique_identity
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.lull import Lull
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.scheduler import Scheduler
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.apps.scheduler.watches import Watches
from gpu_orchestrator.policies.registry import GROUP, Registry

# What work in hand gets to finish in. Kubernetes kills 30 s after SIGTERM.
FINISH_S = 10.0
# Events that may wait to be written, and how many are written at a time.
EVENTS = 20_000
WRITERS = 16

log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Returns after SIGTERM or SIGINT. Raises `Lost` when leadership is lost: a new process starts clean."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.open(config.load(settings.kubeconfig)))
        process = Process(client, settings)
        await process.listen(stack)
        await process.live(stop)
    log.info("stopped")


class Process:
    def __init__(self, client: Client, settings: Settings) -> None:
        self._settings, self._metrics = settings, Metrics()
        self._watches = Watches(client, settings.namespace)
        lull = Lull(asyncio.get_running_loop().time)
        self._recorder = Recorder(
            client, settings.scheduler_name, capacity=EVENTS, writers=WRITERS, pace=lull.wait
        )
        self._elector = Elector(
            client,
            names.SCHEDULER_LEASE,
            settings.namespace,
            identity=unique_identity(),
            times=Times(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds),
        )
        plugins = Registry(default_strategy=settings.strategy or Registry().default_strategy)
        self._scheduler = Scheduler(
            client,
            settings,
            self._watches,
            self._recorder,
            self._metrics,
            lull=lull,
            registry=plugins.with_plugins((each.name, each.load) for each in entry_points(group=GROUP)),
            rng=random.SystemRandom(),
            may_write=self._may_write,
        )

    def _may_write(self) -> bool:
        return self._elector.is_leader or not self._settings.leader_elect

    async def listen(self, stack: AsyncExitStack) -> None:
        """Serve probes and metrics from the start: a process that waits for its copies is alive."""
        probes = serving.probe_routes(live=lambda: "", ready=self._watches.unready)
        await stack.enter_async_context(serving.serve(self._settings.health_probe_bind_address, probes))
        metrics = serving.metrics_routes(self._metrics.registry)
        await stack.enter_async_context(serving.serve(self._settings.metrics_bind_address, metrics))

    async def live(self, stop: asyncio.Event) -> None:
        log.info("Registered plugin", plugin="GpuClaimPlugin")
        log.info("scheduler started", name=self._settings.scheduler_name, lock=self._settings.lock)
        if self._settings.lock == "binding":
            log.warning("lock is binding: devices have no leases; safe only while one scheduler leads")
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(each.run()) for each in self._watches.all]
            helpers.append(group.create_task(self._recorder.run()))
            work = group.create_task(self._work())
            asked_to_stop = group.create_task(stop.wait())
            await asyncio.wait({work, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(work)
            for task in (*helpers, asked_to_stop):
                task.cancel()

    async def _work(self) -> None:
        """A standby keeps its copies warm and waits here."""
        await self._watches.synced()
        if self._settings.leader_elect:
            await self._elector.lead(self._scheduler.work)
        else:
            await self._scheduler.work()

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """What is under way is finished, the Lease is released, and what happened is told."""
        if not work.done():
            await self._scheduler.finish(FINISH_S)
            work.cancel()
            await asyncio.wait({work})
        await self._recorder.drain()
