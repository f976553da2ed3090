"""`gpu-orchestrator doctor`: can this identity reach the cluster, are our kinds installed, is it authorized?

One line per finding; the exit code is 1 if something is wrong. Changes nothing.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_orchestrator.adapters.kube import reviews
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS

ANSWER_LIMIT_S = 10.0

Component = Literal["operator", "scheduler", "agent"]
KINDS = (GPU_WORKLOADS, GPU_CLAIMS, GPU_NODE_STATUSES)


@dataclass(frozen=True, slots=True)
class Right:
    """Some verbs on one resource: everywhere, in one namespace, or on one object alone."""

    group: str
    resource: str
    verbs: str
    namespace: str = ""
    name: str = ""

    def each(self) -> Iterator[Access]:
        for verb in self.verbs.split():
            yield Access(verb, self.resource, self.group, self.namespace, self.name)


# What each component does; a test compares the shipped roles with it.
RIGHTS: dict[Component, tuple[Right, ...]] = {
    "operator": (
        Right("", "nodes", "list watch"),
        Right("", "pods", "list watch"),
        Right(names.WARP_GROUP, "gpuworkloads", "list watch patch"),
        Right(names.WARP_GROUP, "gpuworkloads/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpuclaims", "get create"),
        Right("batch", "jobs", "list watch get create patch delete"),
        Right("coordination.k8s.io", "leases", "create", names.NAMESPACE),
        Right("coordination.k8s.io", "leases", "get patch", names.NAMESPACE, names.OPERATOR_LEASE),
        Right("events.k8s.io", "events", "create patch"),
    ),
    "scheduler": (
        Right("", "nodes", "list watch"),
        Right("", "persistentvolumes", "list watch"),
        Right("", "persistentvolumeclaims", "list watch"),
        Right("", "pods", "list watch get"),
        Right("", "pods/binding", "create"),
        Right("", "pods/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpuclaims", "list watch get create patch"),
        Right(names.SCHEDULING_GROUP, "gpuclaims/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses", "list watch"),
        Right("coordination.k8s.io", "leases", "list watch get create patch delete", names.NAMESPACE),
        Right("events.k8s.io", "events", "create patch"),
    ),
    "agent": (
        Right("", "pods", "list watch"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses", "get create patch"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses/status", "patch"),
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    is_good: bool
    text: str


def doctor(*, kubeconfig: Path | None = None, context: str = "", component: Component | None = None) -> None:
    """Check the connection to the cluster, our resource kinds and our permissions.

    Parameters
    ----------
    kubeconfig
        The kubeconfig to use; by default KUBECONFIG, the pod's own files or ~/.kube/config.
    context
        The context to use, if not the current one.
    component
        Check the permissions of this component only.
    """
    wrong = asyncio.run(_tell_all(kubeconfig, context, component))
    sys.exit(1 if wrong else 0)


async def _tell_all(kubeconfig: Path | None, context: str, component: Component | None) -> int:
    wrong = 0
    try:
        async for finding in _findings(kubeconfig, context, component):
            wrong += not finding.is_good
            _tell(finding)
    except KubeError as error:
        wrong += 1
        _tell(Finding(False, str(error)))
    return wrong


def _tell(finding: Finding) -> None:
    mark, stream = ("ok    ", sys.stdout) if finding.is_good else ("failed", sys.stderr)
    print(f"{mark}  {finding.text}", file=stream, flush=True)


async def _findings(
    kubeconfig: Path | None, context: str, component: Component | None
) -> AsyncIterator[Finding]:
    found = config.load(kubeconfig, context)
    yield Finding(True, f"configuration: {found.source}")
    async with Client.open(found) as opened:
        client = opened.with_limits(timeout_s=ANSWER_LIMIT_S)
        yield Finding(True, f"server: {found.server}, {await reviews.version(client)}")
        for kind in KINDS:
            yield await _installed(client, kind.group, kind.version, kind.plural)
        for access in _wanted(component):
            if not await reviews.may_i(client, access):
                yield Finding(False, _missing(access))


async def _installed(client: Client, group: str, version: str, plural: str) -> Finding:
    name = f"{plural}.{group}/{version}"
    if plural in await reviews.served(client, group, version):
        return Finding(True, f"kind: {name}")
    return Finding(
        False, f"the server does not serve {name}; install its definition: kubectl apply -k config/crd"
    )


def _wanted(component: Component | None) -> Iterator[Access]:
    chosen = [component] if component else list(RIGHTS)
    yield from dict.fromkeys(access for name in chosen for right in RIGHTS[name] for access in right.each())


def _missing(access: Access) -> str:
    group = f" of API group {access.group}" if access.group else ""
    where = f"a Role in namespace {access.namespace}" if access.namespace else "a ClusterRole"
    return (
        f"this identity may not {access}; grant verb '{access.verb}' on '{access.resource}'{group} "
        f"in {where} (see config/rbac)"
    )
