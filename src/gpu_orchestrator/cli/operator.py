"""`gpu-orchestrator operator`: run GPUWorkloads as Jobs on the nodes it finds for them."""

import sys
from typing import Annotated, Literal

import structlog
import uvloop
from cyclopts import Parameter

from gpu_orchestrator.adapters.kube.election import Lost
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import OnNoCapacity
from gpu_orchestrator.apps.operator.observe.snapshot_reader import Defaults
from gpu_orchestrator.apps.operator.run import Options, run
from gpu_orchestrator.cli import log_setup
from gpu_orchestrator.policies.registry import BadPlugin


def operator(
    *,
    kubeconfig: str = "",
    namespace: str = "",
    default_path: Literal["plain", "claimed"] = "plain",
    on_no_capacity: OnNoCapacity = "Retry",
    leader_elect: Annotated[bool, Parameter(negative="--no-leader-elect")] = True,
    leader_election_namespace: str = names.NAMESPACE,
    metrics_bind_address: str = "127.0.0.1:8080",
    health_probe_bind_address: str = "127.0.0.1:8081",
    v: Annotated[int, Parameter(name="--v")] = 0,
) -> None:
    """Find a node for each GPUWorkload and run it there as a Job.

    Parameters
    ----------
    kubeconfig
        Which cluster to use; by default $KUBECONFIG, the pod's own, or ~/.kube/config.
    namespace
        Serve workloads of this namespace only; by default of all namespaces.
    default_path
        Who places workloads that have no claim: "plain" the operator itself, "claimed" the gpu-scheduler.
    on_no_capacity
        What lack of room costs workloads that do not say it in retryPolicy.onNoCapacity: "Retry" a try, until
        none is left; "Wait" nothing, they wait until there is room.
    leader_elect
        Of several operators only one works at a time; the others stand by.
    leader_election_namespace
        The namespace of the Lease by which they elect the leader.
    metrics_bind_address
        Where /metrics is served (host:port); 0 turns it off.
    health_probe_bind_address
        Where /healthz and /readyz are served; 0 turns it off.
    v
        0 logs what happens, 1 also why.
    """
    log_setup.configure(v)
    options = Options(
        kubeconfig=kubeconfig,
        namespace=namespace,
        defaults=Defaults(claims=default_path == "claimed", waits=on_no_capacity == "Wait"),
        leader_elect=leader_elect,
        lease_namespace=leader_election_namespace,
        metrics_address=metrics_bind_address,
        probe_address=health_probe_bind_address,
    )
    try:
        uvloop.run(run(options))
    except* (KubeError, Lost, BadAddress, BadPlugin) as group:
        for error in group.exceptions:
            structlog.get_logger().error("operator ended", error=str(error))
        sys.exit(1)
