"""The agent as a process: called by the command line."""

from pathlib import Path

import structlog

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.gpus import find
from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.adapters.kube import process
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import unique_identity
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.process import Process
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent.agent import Agent
from gpu_orchestrator.apps.agent.looker import Looker
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.settings import Settings

EVENTS, WRITERS = 256, 1

log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run until the process is asked to stop; see `process.run`."""
    gpus = source(settings)
    log.info("agent started", node=settings.node_name, simulated=settings.is_simulated)
    await process.run(
        lambda client: make(client, settings, gpus),
        kubeconfig=settings.kubeconfig,
        probe_address=settings.health_probe_bind_address,
        metrics_address=settings.metrics_bind_address,
    )


def source(settings: Settings) -> Gpus:
    """Return the devices of this node, or those that the settings describe."""
    return find.find(
        settings.simulate,
        Path(settings.devices_folder),
        devices_file=Path(settings.devices_file) if settings.devices_file else None,
        root=Path(settings.root),
    )


def make(client: Client, settings: Settings, gpus: Gpus) -> Process:
    metrics = Metrics(settings.node_name)
    recorder = Recorder(client, names.AGENT, capacity=EVENTS, writers=WRITERS)
    agent = Agent(
        client,
        settings,
        Looker(gpus, Path(settings.root), elapsed_s),
        identity=settings.pod_name or unique_identity(),
        recorder=recorder,
        metrics=metrics,
        clock=elapsed_s,
    )
    return Process(agent, recorder, metrics.registry, None, unready=agent.unready)
