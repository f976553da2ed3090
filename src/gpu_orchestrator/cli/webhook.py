"""`gpu-orchestrator webhook`: fill in pods that claim GPUs, and check claims and workloads."""

import sys
from typing import Annotated

import structlog
import uvloop
from cyclopts import Parameter

from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.adapters.tls import BadCertificate
from gpu_orchestrator.apps.webhook import settings
from gpu_orchestrator.apps.webhook.run import run
from gpu_orchestrator.cli import log_setup


def webhook(
    *,
    config: str = "",
    kubeconfig: str | None = None,
    bind_address: str | None = None,
    tls_cert_file: str | None = None,
    tls_key_file: str | None = None,
    metrics_bind_address: str | None = None,
    health_probe_bind_address: str | None = None,
    v: Annotated[int, Parameter(name="--v")] = 0,
) -> None:
    """Answer the API server about new pods, GpuClaims and GPUWorkloads.

    Parameters
    ----------
    config
        A file with settings; flags win over it.
    kubeconfig
        Which cluster to use; by default $KUBECONFIG, the pod's own, or ~/.kube/config.
    bind_address
        Where the API server calls, over TLS (host:port); :8443 by default.
    tls_cert_file
        The certificate, as PEM; it is loaded again when the file changes.
    tls_key_file
        Its key, as PEM.
    metrics_bind_address
        Where /metrics is served (host:port); 0 turns it off.
    health_probe_bind_address
        Where /healthz and /readyz are served without TLS; 0 turns it off.
    v
        0 logs what happens, 1 also why.
    """
    log_setup.configure(v)
    flags = {
        "kubeconfig": kubeconfig,
        "bind_address": bind_address,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
        "metrics_bind_address": metrics_bind_address,
        "health_probe_bind_address": health_probe_bind_address,
    }
    try:
        uvloop.run(run(settings.load(config, flags)))
    except* (KubeError, BadAddress, BadCertificate, BadSettings) as group:
        for error in group.exceptions:
            structlog.get_logger().error("webhook ended", error=str(error))
        sys.exit(1)
