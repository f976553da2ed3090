"""The life of a process that serves a cluster: servers up, copies warm, leader elected, work done, signals
heard, a clean way out. Operator and scheduler are such processes; each brings what it watches and does.
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

# What work in hand gets to finish in. Kubernetes kills 30 s after SIGTERM.
FINISH_S = 10.0

log = structlog.get_logger()


class Part(Protocol):
    @property
    def watches(self) -> Sequence[Watch[Any]]:
        """In the order in which they are to be known."""

    async def work(self) -> None:
        """What only one replica does. Begun when all watches are complete and we lead; ends after `stop`."""

    def stop(self) -> None:
        """Begin nothing more, and let what is in hand come to its end."""


class Process:
    """Without an elector it works at once, whoever else does."""

    def __init__(
        self, part: Part, recorder: Recorder, metrics: CollectorRegistry, elector: Elector | None
    ) -> None:
        self.metrics = metrics
        self._part, self._recorder, self._elector = part, recorder, elector
        self._is_at_work = False

    def unready(self) -> str:
        watches = self._part.watches
        waiting = [each for each in watches if not each.is_synced]
        return f"{len(waiting)} of {len(watches)} copies are not complete yet" if waiting else ""

    async def live(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(each.run()) for each in self._part.watches]
            helpers.append(group.create_task(self._recorder.run()))
            work = group.create_task(self._work())
            asked_to_stop = group.create_task(stop.wait())
            await asyncio.wait({work, asked_to_stop}, return_when=asyncio.FIRST_COMPLETED)
            await self._finish(work)
            for task in (*helpers, asked_to_stop):
                task.cancel()

    async def _work(self) -> None:
        """A standby keeps its copies warm and waits here."""
        for each in self._part.watches:
            await each.synced()
        if self._elector is not None:
            await self._elector.lead(self._begin)
        else:
            await self._begin()

    async def _begin(self) -> None:
        self._is_at_work = True
        await self._part.work()

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """What is under way is finished, the Lease is released, and what happened is told."""
        self._part.stop()
        await asyncio.wait({work}, timeout=FINISH_S if self._is_at_work else 0.0)
        work.cancel()
        await asyncio.wait({work})
        await self._recorder.drain()


async def run(
    make: Callable[[Client], Process], *, kubeconfig: str, probe_address: str, metrics_address: str
) -> None:
    """Returns after SIGTERM or SIGINT. Raises `Lost` when leadership is lost: a new process starts clean."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with AsyncExitStack() as stack:
        process = make(await stack.enter_async_context(Client.open(config.load(kubeconfig))))
        # From the start: a process that waits for its copies is alive.
        probes = serving.probe_routes(live=lambda: "", ready=process.unready)
        await stack.enter_async_context(serving.serve(probe_address, probes))
        metrics = serving.metrics_routes(process.metrics)
        await stack.enter_async_context(serving.serve(metrics_address, metrics))
        await process.live(stop)
    log.info("stopped")
