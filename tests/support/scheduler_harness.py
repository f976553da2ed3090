"""A desk with its stores and with an executor that only records, for tests of what it decides."""

import random
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, Node, Pod
from gpu_orchestrator.api.wire import Object
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, PodEnded
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator, CoordinatorConfig
from gpu_orchestrator.apps.scheduler.informers import Stores, claims_of
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry
from tests.support.scheduler_objects import pod

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """A store as a watch keeps it that is listing again: the version of the whole is not known."""

    store: Store[T]
    resource_version: str = ""


class RecordingExecutor:
    """Records what the desk asked for."""

    def __init__(self) -> None:
        self.jobs: list[BindJob] = []
        self.abandoned: list[BindJob] = []
        self.refused: dict[str, str] = {}
        self.has_ended: list[PodEnded] = []
        self.cleared: list[str] = []

    def place(self, job: BindJob) -> None:
        self.jobs.append(job)

    def abandon(self, job: BindJob, why: str) -> None:
        self.abandoned.append(job)

    def refuse(self, pod: Pod, why: str) -> None:
        self.refused[pod.metadata.name] = why

    def ended(self, ended: PodEnded) -> None:
        self.has_ended.append(ended)

    def clear(self, pod: Pod) -> None:
        self.cleared.append(pod.metadata.name)

    def wake_at(self, moment: float | None) -> None: ...


class World:
    """A desk with its stores, changed as a watch would change them."""

    def __init__(self, *nodes: Node, opened: bool = True, **rules: Any) -> None:
        self.pods: Store[Pod] = Store({"claim": claims_of, "volume": lambda _: []})
        self.nodes: Store[Node] = Store()
        self.claims: Store[GpuClaim] = Store({"pod": lambda each: [claims.served(each)]})
        self.node_statuses: Store[GpuNodeStatus] = Store()
        self.leases: Store[Lease] = Store()
        stores = Stores(self.pods, self.nodes, self.claims, self.node_statuses, self.leases, Store(), Store())
        self.executor = RecordingExecutor()
        engine = Engine(Registry().policy_of, random.Random(1))
        self.now = 0.0
        self.coordinator = Coordinator(
            engine, stores, self.executor, CoordinatorConfig(**rules), clock=lambda: self.now
        )
        for each in nodes:
            self.node(each)
        if opened:
            self.coordinator.open()

    def node(self, seen: Node) -> None:
        for change in self.nodes.put(seen):
            self.coordinator.nodes.see(*change)

    def report(self, seen: GpuNodeStatus) -> None:
        for change in self.node_statuses.put(seen):
            self.coordinator.nodes.see_node_status(*change)

    def pod(self, seen: Pod) -> None:
        for change in self.pods.put(seen):
            self.coordinator.see_pod(*change)

    def pod_gone(self, name: str) -> None:
        for change in self.pods.drop(f"default/{name}"):
            self.coordinator.see_pod(*change)

    def claim(self, seen: GpuClaim) -> None:
        for change in self.claims.put(seen):
            self.coordinator.see_claim(*change)

    def lease(self, seen: Lease) -> None:
        for change in self.leases.put(seen):
            self.coordinator.leases.see(*change)

    def lease_gone(self, name: str) -> None:
        for change in self.leases.drop(f"system/{name}"):
            self.coordinator.leases.see(*change)

    def free(self, name: str) -> int:
        return self.coordinator.engine.cluster.free_gpus(name)

    def bind(self, job: BindJob) -> None:
        """Bound, and shown by the watch."""
        self.coordinator.done(Bound(job))
        name, where = job.pod.metadata.name, job.placement
        ids = ",".join(map(str, where.devices))
        self.pod(pod(name, node=where.node, gpus=len(where.devices), allocated=f"{where.node}:{ids}"))
