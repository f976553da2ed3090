"""The scheduler as a process. A new leader rebuilds its whole state from the API server; nothing is stored
anywhere else."""

import asyncio
import random

import structlog

from gpu_orchestrator.adapters import plugins
from gpu_orchestrator.adapters.kube import process
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, Times, unique_identity
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.process import Process
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.scheduler.informers import Watches
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.scheduler import Scheduler
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.policies.registry import Registry

# Events that may wait to be written, and how many writers there are.
EVENTS = 20_000
WRITERS = 16

log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run until the process is asked to stop; see `process.run`."""
    log.info("Registered plugin", plugin="GpuClaimPlugin")
    log.info("scheduler started", name=settings.scheduler_name, lock=settings.lock)
    if settings.lock == "binding":
        log.warning("lock is binding: devices have no leases; safe only while one scheduler leads")
    await process.run(
        lambda client: make(client, settings),
        kubeconfig=settings.kubeconfig,
        probe_address=settings.health_probe_bind_address,
        metrics_address=settings.metrics_bind_address,
    )


def make(client: Client, settings: Settings) -> Process:
    metrics, pacer = Metrics(), Pacer(asyncio.get_running_loop().time)
    recorder = Recorder(client, settings.scheduler_name, capacity=EVENTS, writers=WRITERS, pace=pacer.wait)
    watches = Watches(client, settings.device_lease_namespace)
    elector = _elector(client, settings, watches) if settings.leader_elect else None
    scheduler = Scheduler(
        client,
        settings,
        watches,
        recorder,
        metrics,
        pacer=pacer,
        registry=_registry(settings),
        rng=random.SystemRandom(),
        may_write=lambda: elector is None or elector.is_leader,
    )
    return Process(scheduler, recorder, metrics.registry, elector)


def _elector(client: Client, settings: Settings, watches: Watches) -> Elector:
    shows_ours = settings.device_lease_namespace == settings.namespace
    return Elector(
        client,
        names.scheduler_lease(settings.scheduler_name),
        settings.namespace,
        identity=unique_identity(),
        times=Times(settings.lease_seconds, settings.renew_seconds, settings.retry_seconds),
        leases=watches.leases if shows_ours else None,
    )


def _registry(settings: Settings) -> Registry:
    """Return our policies and those of installed plugins."""
    ours = Registry(default_strategy=settings.strategy or Registry().default_strategy)
    known = plugins.with_installed(ours)
    known.policy()  # raises now if the default is unknown, not when the first pod asks
    return known
