"""Serve reviews from the moment the watches are synced until SIGTERM, and then for a moment more."""

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import Any

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.uvicorn_server import Server
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.kubernetes import NODES
from gpu_orchestrator.apps.webhook import app, server
from gpu_orchestrator.apps.webhook.app import Probes
from gpu_orchestrator.apps.webhook.certificate import Certificate
from gpu_orchestrator.apps.webhook.claim_reader import ClaimReader
from gpu_orchestrator.apps.webhook.device_memory import DeviceMemory
from gpu_orchestrator.apps.webhook.metrics import Metrics
from gpu_orchestrator.apps.webhook.queue_reader import QueueReader
from gpu_orchestrator.apps.webhook.reviewer import Reviewer
from gpu_orchestrator.apps.webhook.server import Connections
from gpu_orchestrator.apps.webhook.settings import Settings

log = structlog.get_logger()


class Webhook:
    """A `Component` of `adapters/kube/process.py`. Every replica serves; there is no leader."""

    def __init__(
        self, client: Client, settings: Settings, certificate: Certificate, metrics: Metrics
    ) -> None:
        self._settings, self._certificate, self._metrics = settings, certificate, metrics
        self._claims = Watch(client, GPU_CLAIMS)
        self._nodes, self._reports = Watch(client, NODES), Watch(client, GPU_NODE_STATUSES)
        memory = DeviceMemory(self._nodes.store, self._reports.store)
        self._nodes.on_change(memory.node_changed)
        self._reports.on_change(memory.report_changed)
        claims = ClaimReader(client, self._claims.store, metrics, limit_s=settings.claim_read_seconds)
        queues = QueueReader(client, limit_s=settings.claim_read_seconds)
        self._reviewer = Reviewer(claims.find, memory.sizes.largest_mib, queues.all, uses_mps=settings.mps)
        self._stopped = asyncio.Event()

    @property
    def watches(self) -> Sequence[Watch[Any]]:
        return self._nodes, self._reports, self._claims, *self._certificate.watches

    def stop(self) -> None:
        self._stopped.set()

    async def work(self) -> None:
        # In a group: a certificate that nobody keeps any more would expire unseen, so that ends the process.
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._certificate.keep())
            if context := await self._context():
                await self._listen(context)
            keeping.cancel()

    async def _context(self) -> ssl.SSLContext | None:
        """Wait for a certificate; return None if the process is stopped before."""
        ready = asyncio.create_task(self._certificate.ready())
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if ready.done():
            return await ready
        ready.cancel()
        return None

    async def _listen(self, context: ssl.SSLContext) -> None:
        probes = Probes(self._unready, self._closes)
        serving = server.make(
            app.build(self._reviewer, self._metrics, probes),
            context,
            Connections(self._settings.max_connections, self._metrics),
        )
        with server.listen(self._settings.bind_address) as listening:
            log.info("serving", address=self._settings.bind_address, port=listening.getsockname()[1])
            await self._serve(serving, asyncio.create_task(serving.serve(sockets=[listening])))

    async def _serve(self, serving: Server, task: "asyncio.Task[None]") -> None:
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            # The API server calls us until it has heard that we are gone.
            await asyncio.wait({task}, timeout=self._settings.drain_seconds)
        serving.should_exit = True
        await task

    def _unready(self) -> str:
        return "stopping" if self._stopped.is_set() else ""

    def _closes(self) -> bool:
        """Tell whether the next answer closes its connection."""
        by_chance = random.random() * self._settings.requests_per_connection < 1  # noqa: S311 - spreads load
        return self._stopped.is_set() or by_chance
