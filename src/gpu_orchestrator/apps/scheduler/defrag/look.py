"""Read a cluster once, and count it as the scheduler does: the same handlers get the same objects, and
nothing is decided or written.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from gpu_orchestrator.adapters import plugins
from gpu_orchestrator.adapters.kube import errors, reviews
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.kubernetes import (
    CSI_NODES,
    DISRUPTION_BUDGETS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    VOLUME_CLAIMS,
    Pod,
)
from gpu_orchestrator.api.podgroup import POD_GROUPS
from gpu_orchestrator.api.volumes import STORAGE_CLASSES, VOLUMES
from gpu_orchestrator.api.wire import Object, Resource, key
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.actions import BindJob, PodEnded
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.preemptible import Budget
from gpu_orchestrator.apps.scheduler.cycle.shared import CoordinatorConfig
from gpu_orchestrator.apps.scheduler.informers import NOT_ENDED, Watches
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one moment. `coordinator` has counted all that is held, and decides nothing."""

    coordinator: Coordinator
    budgets: Sequence[Budget]
    registry: Registry
    at: datetime


class Nobody:
    """An executor that does nothing."""

    def bind(self, job: BindJob) -> None: ...

    def bind_gang(self, gang: str, jobs: Sequence[BindJob]) -> None: ...

    def abandon(self, job: BindJob, why: str) -> None: ...

    def report_refused(self, pod: Pod, why: str) -> None: ...

    def release(self, ended: PodEnded) -> None: ...

    def clear_leases(self, pod: Pod) -> None: ...

    def wake_at(self, moment: float | None) -> None: ...


async def look(client: Client, rng: Rng, *, scheduler_name: str, lease_namespace: str) -> Seen:
    """Return what is in the cluster now. Raises `KubeError`."""
    watches = Watches(client, lease_namespace)
    stores = watches.stores
    budgets: Store[Any] = Store()
    kinds: list[tuple[Resource[Any], Store[Any], Mapping[str, str]]] = [
        (NODES, stores.nodes, {}),
        (GPU_NODE_STATUSES, stores.node_statuses, {}),
        (GPU_CLAIMS, stores.claims, {}),
        (LEASES, stores.leases, {"namespace": lease_namespace}),
        (VOLUMES, stores.volumes, {}),
        (VOLUME_CLAIMS, stores.volume_claims, {}),
        (STORAGE_CLASSES, stores.storage_classes, {}),
        (CSI_NODES, stores.csi_nodes, {}),
        (NAMESPACES, stores.namespaces, {}),
        (DISRUPTION_BUDGETS, budgets, {}),
        (PODS, stores.pods, {"fields": NOT_ENDED}),
    ]
    if POD_GROUPS.plural in await reviews.served(client, POD_GROUPS.group, POD_GROUPS.version):
        kinds.append((POD_GROUPS, stores.pod_groups, {}))
    await asyncio.gather(*(_fill(client, kind, store, **where) for kind, store, where in kinds))
    registry = plugins.with_installed(Registry())
    coordinator = _counted(watches, scheduler_name, Engine(registry.policy_of, rng))
    return Seen(coordinator, preemptible.budgets(budgets), registry, datetime.now(UTC))


async def _fill(
    client: Client, kind: Resource[T], store: Store[T], *, namespace: str = "", fields: str = ""
) -> None:
    """List one kind, without the objects that cannot be read: the scheduler does not see them either."""
    found: dict[str, T] = {}
    for is_last in (False, False, True):
        try:
            async for page in client.pages(kind, namespace, fields=fields, on_bad=_skip):
                found |= {key(each): each for each in page.items or ()}
            break
        except errors.Gone:  # the version of the list was lost between two pages
            if is_last:
                raise
            found.clear()
    store.replace(found)


def _skip(error: errors.BadAnswer, raw: msgspec.Raw) -> None:
    """Leave out one bad object: a tenant's text must not stop an administrator."""


def _counted(watches: Watches, scheduler_name: str, engine: Engine) -> Coordinator:
    """Return a coordinator that knows all of these objects. They come in the order in which the scheduler's
    handlers get them."""
    stores, clock = watches.stores, time.monotonic
    agents = AgentLiveness(clock, lambda: datetime.now(UTC))
    coordinator = Coordinator(
        engine,
        stores,
        Nobody(),
        CoordinatorConfig(scheduler_name, guarded_annotations=True),
        clock=clock,
        is_agent_live=agents.is_live,
    )
    for lease in stores.leases:
        agents.on_lease(None, lease)
    for node in stores.nodes:
        coordinator.nodes.on_node(None, node)
    for csi_node in stores.csi_nodes:
        coordinator.nodes.on_csi_node(None, csi_node)
    for lease in stores.leases:
        coordinator.lease_index.on_lease(None, lease)
    for pod in stores.pods:
        coordinator.on_pod(None, pod)
        coordinator.nominations.on_pod(None, pod)
    list(coordinator.count_holdings())
    return coordinator
