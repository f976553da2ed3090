"""The main loop of operator, scheduler and webhook: serve probes and metrics, fill the watches, wait for
leadership, work, and shut down cleanly on SIGTERM. Each app passes its watches and its work as a `Component`.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry

from gpu_orchestrator.adapters import serving
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.watch import Watch

# How long running work may take to finish. Kubernetes kills the pod 30 s after SIGTERM.
FINISH_S = 10.0

log = structlog.get_logger()


class Component(Protocol):
    @property
    def watches(self) -> Sequence[Watch[Any]]:
        """The watches, in the order in which their first lists must be complete."""

    async def work(self) -> None:
        """Do what only one replica may do. Starts when we lead with synced watches; ends after `stop`."""

    def stop(self) -> None:
        """Start nothing more and let running work finish."""


class Process:
    """Runs one component. Without an elector it works as soon as the watches are synced."""

    def __init__(
        self, component: Component, recorder: Recorder, metrics: CollectorRegistry, elector: Elector | None
    ) -> None:
        self.metrics = metrics
        self._component, self._recorder, self._elector = component, recorder, elector
        self._is_working = False

    def unready(self) -> str:
        watches = self._component.watches
        waiting = [each for each in watches if not each.is_synced]
        return f"{len(waiting)} of {len(watches)} watches are not synced yet" if waiting else ""

    async def run_until(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(each.run()) for each in self._component.watches]
            helpers.append(group.create_task(self._recorder.run()))
            work = group.create_task(self._work())
            asked_to_stop = group.create_task(stop.wait())
            await asyncio.wait({work, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(work)
            for task in (*helpers, asked_to_stop):
                task.cancel()

    async def _work(self) -> None:
        """Wait for the watches and for leadership, then work. A standby waits here with live watches."""
        for each in self._component.watches:
            await each.synced()
        if self._elector is not None:
            await self._elector.lead(self._begin)
        else:
            await self._begin()

    async def _begin(self) -> None:
        self._is_working = True
        await self._component.work()

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """Let running work finish, release the Lease, and write the remaining events."""
        self._component.stop()
        await asyncio.wait({work}, timeout=FINISH_S if self._is_working else 0.0)
        work.cancel()
        await asyncio.wait({work})
        await self._recorder.drain()


async def run(
    make: Callable[[Client], Process], *, kubeconfig: str, probe_address: str, metrics_address: str
) -> None:
    """Run until SIGTERM or SIGINT. Raise `Lost` when leadership is lost: a new process starts clean."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with AsyncExitStack() as stack:
        process = make(await stack.enter_async_context(Client.open(config.load(kubeconfig))))
        # Serve probes from the start: a process that waits for its watches is alive.
        probes = serving.probe_routes(live=lambda: "", ready=process.unready)
        await stack.enter_async_context(serving.serve(probe_address, probes))
        metrics = serving.metrics_routes(process.metrics)
        await stack.enter_async_context(serving.serve(metrics_address, metrics))
        await process.run_until(stop)
    log.info("stopped")
