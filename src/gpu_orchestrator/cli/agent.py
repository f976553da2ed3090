"""`gpu-orchestrator agent`: report the GPUs of one node."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated

import structlog
import uvloop
from cyclopts import Parameter

from gpu_orchestrator.adapters.gpus.simulated import BadDescription
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.agent import settings
from gpu_orchestrator.apps.agent.heartbeat import Displaced
from gpu_orchestrator.apps.agent.run import run
from gpu_orchestrator.cli import log_setup


def agent(
    *,
    config: str = "",
    kubeconfig: str | None = None,
    namespace: str | None = None,
    node_name: str | None = None,
    mps: bool | None = None,
    simulate: str | None = None,
    devices_file: str | None = None,
    devices_folder: str | None = None,
    metrics_bind_address: str | None = None,
    health_probe_bind_address: str | None = None,
    v: Annotated[int, Parameter(name="--v")] = 0,
) -> None:
    """Report which GPUs this node has, how they are and which pods use them, and raise an alarm when a pod
    uses one that it was not given.

    Parameters
    ----------
    config
        A file with settings; flags win over it.
    kubeconfig
        Which cluster to use; by default $KUBECONFIG, the pod's own, or ~/.kube/config.
    namespace
        The namespace of the leases of devices and agents.
    node_name
        The node that this agent is on; else $NODE_NAME.
    mps
        Keep the MPS daemons that hold shared claims to their shares.
    simulate
        Report simulated GPUs instead of the machine's: 8, or 4xL4:24GiB,2xH200:141GiB.
    devices_file
        Report the simulated GPUs that this JSON file describes.
    devices_folder
        Where the simulated GPUs are kept.
    metrics_bind_address
        Where /metrics is served (host:port); 0 turns it off.
    health_probe_bind_address
        Where /healthz and /readyz are served; 0 turns it off.
    v
        0 logs what happens, 1 also why.
    """
    log_setup.configure(v)
    flags = {
        "kubeconfig": kubeconfig,
        "namespace": namespace,
        "node_name": node_name or os.environ.get("NODE_NAME"),
        "pod_name": os.environ.get("POD_NAME"),
        "mps": mps,
        "simulate": simulate,
        "devices_file": devices_file,
        "devices_folder": devices_folder,
        "metrics_bind_address": metrics_bind_address,
        "health_probe_bind_address": health_probe_bind_address,
    }
    try:
        uvloop.run(run(settings.load(config, flags)))
    except* (KubeError, Displaced, BadAddress, BadDescription, BadSettings) as group:
        for error in _leaves(group):
            structlog.get_logger().error("agent ended", error=str(error))
        sys.exit(1)


def _leaves(group: BaseExceptionGroup) -> Iterator[BaseException]:
    """Yield the errors themselves, out of groups in groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
