"""`gpu-orchestrator doctor`: is everything as it should be, in the world that this machine uses?

The cluster manager is checked where one is known here, Kubernetes where a cluster is configured. One line per
finding; the exit code is 1 if something is wrong. Changes nothing.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpu_orchestrator.cli import output, where
from gpu_orchestrator.cli.findings import Component, Finding, tell
from gpu_orchestrator.cli.options import HERE, Server

NO_CLUSTER = "Kubernetes: no cluster is configured; pass --kubeconfig or set KUBECONFIG to check one"


def doctor(
    *,
    kubeconfig: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    context: str = "",
    component: Component | None = None,
    server: Server = HERE,
) -> None:
    """Check the cluster manager, and Kubernetes where a cluster is configured: addresses, keys, permissions,
    workers, GPUs, leaders, clock and disk.

    Parameters
    ----------
    kubeconfig
        Check Kubernetes with this kubeconfig; by default KUBECONFIG, the pod's own files or ~/.kube/config.
    context
        The context to use, if not the current one.
    component
        Check the permissions of this component only.
    """
    wants_kubernetes = bool(kubeconfig or context or component)
    try:
        place = where.find(server)
    except where.BadPlace as error:
        output.fail(error)
    on_kubernetes = wants_kubernetes or has_kubernetes(os.environ)
    by_manager = not wants_kubernetes and (place.found != where.DEFAULT or not on_kubernetes)
    wrong = 0
    if by_manager:
        wrong += _check_manager(place)
    if on_kubernetes:
        wrong += asyncio.run(_check_kubernetes(kubeconfig, context, component))
    else:
        tell(Finding(None, NO_CLUSTER))
    sys.exit(1 if wrong else 0)


def has_kubernetes(environ: Mapping[str, str]) -> bool:
    """Return True if a Kubernetes cluster is configured on this machine."""
    if environ.get("KUBECONFIG") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    return (Path(environ.get("HOME") or "/") / ".kube" / "config").exists()


def _check_manager(place: where.Place) -> int:
    from gpu_orchestrator.cli import doctor_manager

    if place.found == where.DEFAULT and not doctor_manager.answers(place):
        tell(
            Finding(
                False,
                "there is nothing to check: no cluster manager is known here; start one with "
                "`gpu-orchestrator up`, or name one with `gpu-orchestrator login URL`",
            )
        )
        return 1
    wrong = 0
    for finding in doctor_manager.findings(place):
        wrong += finding.is_good is False
        tell(finding)
    return wrong


async def _check_kubernetes(kubeconfig: Path | None, context: str, component: Component | None) -> int:
    from gpu_orchestrator.adapters.kube.errors import KubeError
    from gpu_orchestrator.cli import doctor_kube

    wrong = 0
    try:
        async for finding in doctor_kube.findings(kubeconfig, context, component):
            wrong += finding.is_good is False
            tell(finding)
    except KubeError as error:
        wrong += 1
        tell(Finding(False, str(error)))
    return wrong
