"""The operator as a process: called by the command line, runs a `Controller` under leader election."""

import time
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters import plugins
from gpu_orchestrator.adapters.kube import process
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, unique_identity
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.process import Process
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.operator.controller import Controller, Dependencies
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.observe.snapshot_reader import NO_DEFAULTS, Defaults
from gpu_orchestrator.policies.registry import Registry

# In a burst of workloads, events wait this long before they are sent, and then come this far apart.
EVENTS_WAIT_S, EVENTS_TRICKLE_S = 10.0, 0.02

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    kubeconfig: str = ""
    namespace: str = ""
    defaults: Defaults = NO_DEFAULTS
    leader_elect: bool = True
    lease_namespace: str = names.NAMESPACE
    metrics_address: str = "127.0.0.1:8080"
    probe_address: str = "127.0.0.1:8081"


async def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT; see `process.run`."""
    log.info("operator started", namespace=options.namespace or "all namespaces")
    await process.run(
        lambda client: make(client, options),
        kubeconfig=options.kubeconfig,
        probe_address=options.probe_address,
        metrics_address=options.metrics_address,
    )


def make(client: Client, options: Options) -> Process:
    metrics, pacer = Metrics(), Pacer(time.monotonic, EVENTS_WAIT_S, EVENTS_TRICKLE_S)
    recorder = Recorder(client, names.OPERATOR, pace=pacer.wait)
    controller = Controller(
        Dependencies(client, recorder, metrics, pacer, plugins.with_installed(Registry())),
        namespace=options.namespace,
        defaults=options.defaults,
    )
    lease = Elector(client, names.OPERATOR_LEASE, options.lease_namespace, identity=unique_identity())
    return Process(controller, recorder, metrics.registry, lease if options.leader_elect else None)
