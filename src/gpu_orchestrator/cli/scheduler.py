"""`gpu-orchestrator scheduler`: bind claimed pods to exact GPUs."""

import sys
from typing import Annotated

import structlog
import uvloop
from cyclopts import Parameter

from gpu_orchestrator.adapters.kube.election import Lost
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.scheduler import settings
from gpu_orchestrator.apps.scheduler.run import run
from gpu_orchestrator.apps.scheduler.settings import Lock
from gpu_orchestrator.cli import log_setup
from gpu_orchestrator.policies.registry import BadPlugin, UnknownPolicy


def scheduler(
    *,
    config: str = "",
    kubeconfig: str | None = None,
    namespace: str | None = None,
    lease_namespace: str | None = None,
    scheduler_name: str | None = None,
    lock: Lock | None = None,
    leader_elect: Annotated[bool | None, Parameter(negative="--no-leader-elect")] = None,
    metrics_bind_address: str | None = None,
    health_probe_bind_address: str | None = None,
    v: Annotated[int, Parameter(name="--v")] = 0,
) -> None:
    """Give each pod that requests GPUs the devices that suit it best, and bind it to their node.

    Parameters
    ----------
    config
        A file with settings; flags win over it.
    kubeconfig
        Which cluster to use; by default $KUBECONFIG, the pod's own, or ~/.kube/config.
    namespace
        The namespace of the leader's lease; no tenant may write there.
    lease_namespace
        The namespace of the device leases, the same for all schedulers of a cluster; --namespace by default.
    scheduler_name
        Serve pods with this schedulerName; gpu-scheduler by default.
    lock
        lease: a Lease guards every device (default). binding: fewer writes, safe with one leader only.
    leader_elect
        Of several schedulers only one works at a time; the others stand by. On by default.
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
        "lease_namespace": lease_namespace,
        "scheduler_name": scheduler_name,
        "lock": lock,
        "leader_elect": leader_elect,
        "metrics_bind_address": metrics_bind_address,
        "health_probe_bind_address": health_probe_bind_address,
    }
    try:
        uvloop.run(run(settings.load(config, flags)))
    except* (KubeError, Lost, BadAddress, BadSettings, BadPlugin, UnknownPolicy) as group:
        for error in group.exceptions:
            structlog.get_logger().error("scheduler ended", error=str(error))
        sys.exit(1)
