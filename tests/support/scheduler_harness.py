"""A coordinator with its stores and an executor that only records, for tests of its decisions."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Change, Store
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.api.kubernetes import CsiNode, Lease, Namespace, Node, Pod, VolumeClaim
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.volumes import StorageClass, Volume
from gpu_orchestrator.api.wire import Object
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, PodEnded
from gpu_orchestrator.apps.scheduler.binding.volume_binder import VolumeBinder, Written
from gpu_orchestrator.apps.scheduler.controllers.release import EndedPod
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.shared import CoordinatorConfig
from gpu_orchestrator.apps.scheduler.informers import (
    POD_INDICES,
    VOLUME_CLAIM_INDICES,
    VOLUME_INDICES,
    Stores,
)
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from gpu_orchestrator.policies.registry import Registry
from tests.support.scheduler_objects import pod

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """The store of a watch that is listing again: the version of the whole list is not known."""

    store: Store[T]
    resource_version: str = ""


class RecordingExecutor:
    """Records the coordinator's calls."""

    def __init__(self) -> None:
        self.jobs: list[BindJob] = []
        self.gangs: list[tuple[BindJob, ...]] = []
        self.abandoned: list[BindJob] = []
        self.refused: dict[str, str] = {}
        self.released: list[PodEnded] = []
        self.cleared: list[str] = []
        self.tick_at: float | None = None

    def bind(self, job: BindJob) -> None:
        self.jobs.append(job)

    def bind_gang(self, gang: str, jobs: Sequence[BindJob]) -> None:
        self.gangs.append(tuple(jobs))

    def abandon(self, job: BindJob, why: str) -> None:
        self.abandoned.append(job)

    def report_refused(self, pod: Pod, why: str) -> None:
        self.refused[pod.metadata.name] = why

    def release(self, ended: PodEnded) -> None:
        self.released.append(ended)

    def clear_leases(self, pod: Pod) -> None:
        self.cleared.append(pod.metadata.name)

    def wake_at(self, moment: float | None) -> None:
        self.tick_at = moment


class World:
    """A coordinator with its stores, changed as a watch would change them. The agents of the nodes in
    `silent` give no sign of life."""

    def __init__(
        self,
        *nodes: Node,
        opened: bool = True,
        max_decisions: int = 1_000_000,
        max_rows: float = inf,
        reservations: ReservationRules = OFF,
        left_s: Callable[[Pod], float | None] = lambda pod: None,
        clock: Callable[[], float] | None = None,
        max_in_flight: int = 1_000_000,
        no_groups: str = "",
        **config: Any,
    ) -> None:
        self.pods: Store[Pod] = Store(POD_INDICES)
        self.pod_groups: Store[PodGroup] = Store()
        self.gpu_queues: Store[GpuQueue] = Store()
        self.nodes: Store[Node] = Store()
        self.claims: Store[GpuClaim] = Store({"pod": lambda each: [claims.reserved_for(each)]})
        self.node_statuses: Store[GpuNodeStatus] = Store()
        self.leases: Store[Lease] = Store()
        self.volume_claims: Store[VolumeClaim] = Store(VOLUME_CLAIM_INDICES)
        self.volumes: Store[Volume] = Store(VOLUME_INDICES)
        self.storage_classes: Store[StorageClass] = Store()
        self.namespaces: Store[Namespace] = Store()
        self.csi_nodes: Store[CsiNode] = Store()
        stores = Stores(
            self.pods,
            self.nodes,
            self.claims,
            self.node_statuses,
            self.leases,
            self.volume_claims,
            self.volumes,
            self.namespaces,
            self.csi_nodes,
            self.storage_classes,
            self.pod_groups,
            lambda: no_groups,
            self.gpu_queues,
        )
        self.executor = RecordingExecutor()
        engine = Engine(
            Registry().policy_of,
            random.Random(1),
            max_in_flight=max_in_flight,
            max_decisions=max_decisions,
            max_rows=max_rows,
            reservations=reservations,
        )
        self.now = 0.0
        self.silent: set[str] = set()
        self.unreported: set[str] = set()
        """Nodes whose agent lives and has no report. Others live if they have one and are not `silent`."""
        self.coordinator = Coordinator(
            engine,
            stores,
            self.executor,
            CoordinatorConfig(**config),
            clock=clock or (lambda: self.now),
            left_s=left_s,
            is_agent_live=self._is_agent_live,
        )
        for each in nodes:
            self.node(each)
        if opened:
            self.coordinator.open()

    def node(self, seen: Node) -> None:
        for change in self.nodes.put(seen):
            self.coordinator.nodes.on_node(*change)

    def pod_group(self, seen: PodGroup) -> None:
        for change in self.pod_groups.put(seen):
            self.coordinator.on_pod_group(*change)

    def queue(self, seen: GpuQueue) -> None:
        for change in self.gpu_queues.put(seen):
            self.coordinator.queue_changes.on_queue(*change)

    def queue_gone(self, name: str) -> None:
        for change in self.gpu_queues.drop(name):
            self.coordinator.queue_changes.on_queue(*change)

    def report(self, seen: GpuNodeStatus) -> None:
        for change in self.node_statuses.put(seen):
            self.coordinator.nodes.on_node_status(*change)

    def report_gone(self, seen: GpuNodeStatus) -> None:
        for change in self.node_statuses.drop(seen.metadata.name):
            self.coordinator.nodes.on_node_status(*change)

    def _is_agent_live(self, node: str) -> bool:
        return node in self.unreported or (node in self.node_statuses and node not in self.silent)

    def pod(self, seen: Pod) -> None:
        self._show(self.pods.put(seen))

    def namespace(self, seen: Namespace) -> None:
        for change in self.namespaces.put(seen):
            self.coordinator.on_namespace(*change)
            self.coordinator.queue_changes.on_namespace(*change)

    def csi_node(self, seen: CsiNode) -> None:
        for change in self.csi_nodes.put(seen):
            self.coordinator.nodes.on_csi_node(*change)

    def volume(self, claim: VolumeClaim, volume: Volume) -> None:
        """Show a bound claim and its volume."""
        self.free_volume(volume)
        self.volume_claim(claim)

    def free_volume(self, volume: Volume) -> None:
        for seen in self.volumes.put(volume):
            self.coordinator.on_volume(*seen)

    def volume_claim(self, claim: VolumeClaim) -> None:
        for change in self.volume_claims.put(claim):
            self.coordinator.on_volume_claim(*change)

    def storage_class(self, seen: StorageClass) -> None:
        for change in self.storage_classes.put(seen):
            self.coordinator.volume_plans.on_storage_class(*change)

    def pod_gone(self, name: str) -> None:
        self._show(self.pods.drop(name if "/" in name else f"default/{name}"))

    def _show(self, changes: list[Change[Pod]]) -> None:
        for change in changes:
            self.coordinator.on_pod(*change)
            self.coordinator.nominations.on_pod(*change)

    def claim(self, seen: GpuClaim) -> None:
        for change in self.claims.put(seen):
            self.coordinator.on_claim(*change)

    def lease(self, seen: Lease) -> None:
        for change in self.leases.put(seen):
            self.coordinator.lease_index.on_lease(*change)

    def lease_gone(self, name: str) -> None:
        for change in self.leases.drop(f"system/{name}"):
            self.coordinator.lease_index.on_lease(*change)

    def free(self, name: str) -> int:
        return self.coordinator.engine.cluster.free_gpus(name)

    def bind(self, job: BindJob) -> None:
        """Report the job as bound, and let the watch show the bound pod."""
        self.coordinator.done(Bound(job))
        name, where = job.pod.metadata.name, job.placement
        ids = ",".join(map(str, where.devices))
        self.pod(pod(name, node=where.node, gpus=len(where.devices), allocated=f"{where.node}:{ids}"))


async def gone(ended: EndedPod) -> bool:
    """Answer for the API server that an ended pod is gone, so that no kubelet can say how it ended."""
    return False


def watch_judgements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of each pod whose request is worked out."""
    judged: list[str] = []
    original = pod_request.request_of

    def judge(seen: Pod, *rest: Any, **more: Any) -> Any:
        judged.append(seen.metadata.name)
        return original(seen, *rest, **more)

    monkeypatch.setattr(pod_request, "request_of", judge)
    return judged


def stores_of(*objects: VolumeClaim | Volume | StorageClass | Node | Pod) -> Stores:
    """Return stores with these objects and nothing else."""
    stores = Stores(
        Store(POD_INDICES),
        Store(),
        Store(),
        Store(),
        Store(),
        Store(VOLUME_CLAIM_INDICES),
        Store(VOLUME_INDICES),
    )
    for each in objects:
        match each:
            case VolumeClaim():
                stores.volume_claims.put(each)
            case Volume():
                stores.volumes.put(each)
            case StorageClass():
                stores.storage_classes.put(each)
            case Node():
                stores.nodes.put(each)
            case Pod():
                stores.pods.put(each)
    return stores


def volume_binder(client: Client, stores: Stores, *, wait_s: float = 600.0) -> VolumeBinder:
    written = Written(Overlay(Shown(stores.volume_claims)), Overlay(Shown(stores.volumes)))
    return VolumeBinder(client, written, stores.pods, stores.nodes, wait_s=wait_s)
