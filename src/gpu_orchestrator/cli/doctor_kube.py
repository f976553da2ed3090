"""What `doctor` checks on Kubernetes: the connection, our kinds, permissions, who leads, and the walls."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_orchestrator.adapters.kube import reviews
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Forbidden, KubeError, NotFound, Operation
from gpu_orchestrator.adapters.kube.reviews import Access
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.api import names, webhook_objects
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS
from gpu_orchestrator.api.kubernetes import LEASES, Lease
from gpu_orchestrator.cli import doctor_policies, doctor_webhook, times
from gpu_orchestrator.cli.findings import Component, Finding

ANSWER_LIMIT_S = 10.0
LATE_S = 60.0
"""A leader renews its Lease every few seconds; clocks may differ by a little."""
KINDS = (GPU_WORKLOADS, GPU_CLAIMS, GPU_NODE_STATUSES, GPU_QUEUES)
SCHEDULER_LEASE = names.scheduler_lease(names.SCHEDULER)
LEADERS = {
    "operator": (names.OPERATOR_LEASE, names.OPERATOR, "GPUWorkloads wait"),
    "scheduler": (SCHEDULER_LEASE, names.SCHEDULER, "pods with claims stay pending"),
}
"""By component: the Lease of its leader, its Deployment, and what happens without a leader."""


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
        Right("", "persistentvolumeclaims", "get"),
        Right("", "persistentvolumes", "get"),
        Right("storage.k8s.io", "storageclasses", "get"),
        Right("events.k8s.io", "events", "create patch list"),
    ),
    "scheduler": (
        Right("", "nodes", "list watch"),
        Right("", "nodes/status", "patch"),
        Right("", "persistentvolumes", "list watch patch"),
        Right("", "persistentvolumeclaims", "list watch patch"),
        Right("", "namespaces", "list watch"),
        Right("storage.k8s.io", "csinodes", "list watch"),
        Right("storage.k8s.io", "storageclasses", "list watch"),
        Right("", "pods", "list watch get"),
        Right("", "pods/binding", "create"),
        Right("", "pods/eviction", "create"),
        Right("policy", "poddisruptionbudgets", "list"),
        Right("", "pods/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpuclaims", "list watch get create patch"),
        Right(names.SCHEDULING_GROUP, "gpuclaims/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses", "list watch"),
        Right(names.SCHEDULING_GROUP, "gpuqueues", "list watch"),
        Right(names.SCHEDULING_GROUP, "gpuqueues/status", "patch"),
        Right("coordination.k8s.io", "leases", "list watch get create patch delete", names.NAMESPACE),
        Right("coordination.k8s.io", "leases", "get patch", names.NAMESPACE, SCHEDULER_LEASE),
        Right("events.k8s.io", "events", "create patch"),
    ),
    "webhook": (
        Right(names.SCHEDULING_GROUP, "gpuclaims", "list watch get"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses", "list watch"),
        Right(names.SCHEDULING_GROUP, "gpuqueues", "list"),
        Right("", "nodes", "list watch"),
        Right("", "secrets", "create", names.NAMESPACE),
        Right("", "secrets", "list watch get patch", names.NAMESPACE, names.WEBHOOK_SECRET),
        Right(webhook_objects.GROUP, "mutatingwebhookconfigurations", "list watch patch", "", names.WEBHOOK),
        Right(
            webhook_objects.GROUP, "validatingwebhookconfigurations", "list watch patch", "", names.WEBHOOK
        ),
    ),
    "agent": (
        Right("", "nodes", "list watch"),
        Right("", "pods", "list watch"),
        Right("", "nodes/status", "patch"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses", "get create"),
        Right(names.SCHEDULING_GROUP, "gpunodestatuses/status", "patch"),
        Right("events.k8s.io", "events", "create patch"),
        Right("coordination.k8s.io", "leases", "get create patch", names.NAMESPACE),
    ),
}


async def findings(
    kubeconfig: Path | None, context: str, component: Component | None
) -> AsyncIterator[Finding]:
    """Yield one finding after the other; raise `KubeError` if there can be no more."""
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
        for name in LEADERS:
            if component in (None, name):
                yield await _leader(client, name)
        for part in _walls(component):
            async for finding in part(client):
                yield finding


def _walls(component: Component | None) -> tuple[Callable[[Client], AsyncIterator[Finding]], ...]:
    """Return what else to check: who checks one component alone may not be able to see the others."""
    if component is None:
        return (doctor_policies.findings, doctor_webhook.findings)
    return (doctor_webhook.findings,) if component == "webhook" else ()


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


async def _leader(client: Client, component: str) -> Finding:
    """Return whether this component works. Pods prove nothing: on a simulated cluster none really runs."""
    lease, deployment, effect = LEADERS[component]
    try:
        found = await client.get(LEASES, lease, names.NAMESPACE)
    except NotFound:
        return await _nobody(client, component, deployment, effect)
    except Forbidden:
        return Finding(None, f"{component}: this identity may not see who leads")
    return judged(found, component, effect, datetime.now(UTC))


def judged(lease: Lease, component: str, effect: str, now: datetime) -> Finding:
    """Return what a leader's Lease says now."""
    holder, renewed = lease.spec.holder_identity, times.parse(lease.spec.renew_time)
    if not holder:
        return Finding(None, f"{component}: it has stopped, and no other leads; {effect} until one does")
    if renewed is None or (now - renewed).total_seconds() > max(LATE_S, lease.spec.lease_duration_seconds):
        return Finding(
            False,
            f"{component}: {holder} leads no more, its Lease was last renewed "
            f"{times.ago(renewed, now) or 'never'}; {effect}; "
            f"look at its log, or start it: gpu-orchestrator {component}",
        )
    return Finding(True, f"{component}: {holder} leads")


async def _nobody(client: Client, component: str, deployment: str, effect: str) -> Finding:
    path = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/deployments/{deployment}"
    try:
        await client.send(Operation("get", "deployments", "apps"), Request("GET", path), idempotent=True)
    except KubeError:
        return Finding(None, f"{component}: not installed here, or never started")
    return Finding(
        False,
        f"{component}: its Deployment {deployment} exists, but none has ever led, so {effect}; "
        "look at its log. In a simulated cluster (make cluster) pods only pretend to run: start "
        f"`gpu-orchestrator {component}` by hand",
    )
