"""The operator as a process: servers up, leader elected, work done, signals heard, and a clean way out."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters import serving
from gpu_orchestrator.adapters.kube import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, unique_identity
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.lull import Lull
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.operator.controller import Controller
from gpu_orchestrator.apps.operator.metrics import Metrics

# What work in hand gets to finish in. Kubernetes kills 30 s after SIGTERM.
FINISH_S = 10.0
# How long events stand back in a burst of workloads that wait for their place, and how slowly they come then.
EVENTS_WAIT_S, EVENTS_TRICKLE_S = 10.0, 0.02

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    kubeconfig: str = ""
    namespace: str = ""
    claims_by_default: bool = False
    leader_elect: bool = True
    lease_namespace: str = names.NAMESPACE
    metrics_address: str = "127.0.0.1:8080"
    probe_address: str = "127.0.0.1:8081"


async def run(options: Options) -> None:
    """Returns after SIGTERM or SIGINT. Raises `Lost` when leadership is lost: a new process starts clean."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.open(config.load(options.kubeconfig)))
        process = Process(client, options)
        await process.listen(stack)
        await process.live(stop)
    log.info("stopped")


class Process:
    def __init__(self, client: Client, options: Options) -> None:
        self._options, self._metrics = options, Metrics()
        lull = Lull(time.monotonic, EVENTS_WAIT_S, EVENTS_TRICKLE_S)
        self._recorder = Recorder(client, names.OPERATOR, pace=lull.wait)
        self._controller = Controller(
            client,
            self._recorder,
            self._metrics,
            lull,
            namespace=options.namespace,
            claims_by_default=options.claims_by_default,
        )
        self._elector = Elector(
            client, names.OPERATOR_LEASE, options.lease_namespace, identity=unique_identity()
        )

    async def listen(self, stack: AsyncExitStack) -> None:
        """Serve probes and metrics from the start: a process that waits for its caches is alive."""
        probes = serving.probe_routes(live=lambda: "", ready=self._unready)
        await stack.enter_async_context(serving.serve(self._options.probe_address, probes))
        metrics = serving.metrics_routes(self._metrics.registry)
        await stack.enter_async_context(serving.serve(self._options.metrics_address, metrics))

    def _unready(self) -> str:
        waiting = [each for each in self._controller.watches if not each.is_synced]
        return (
            f"{len(waiting)} of {len(self._controller.watches)} caches are not complete yet"
            if waiting
            else ""
        )

    async def live(self, stop: asyncio.Event) -> None:
        log.info("operator started", namespace=self._options.namespace or "all namespaces")
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(watch.run()) for watch in self._controller.watches]
            helpers.append(group.create_task(self._recorder.run()))
            work = group.create_task(self._work())
            asked_to_stop = group.create_task(stop.wait())
            await asyncio.wait({work, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(work)
            for task in (*helpers, asked_to_stop):
                task.cancel()

    async def _work(self) -> None:
        """A standby keeps its caches warm and waits here."""
        if self._options.leader_elect:
            await self._elector.lead(self._controller.work)
        else:
            await self._controller.work()

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """Writes in hand are finished, the Lease is released, and what happened is told."""
        self._controller.stop()
        patience_s = FINISH_S if self._elector.is_leader or not self._options.leader_elect else 0.0
        await asyncio.wait({work}, timeout=patience_s)
        work.cancel()
        await asyncio.wait({work})
        await self._recorder.drain()
