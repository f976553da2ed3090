"""GpuClaim (`gpu.scheduling/v1`, `gclaim`): exact devices of one node, for one pod at a time."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import field

from gpu_orchestrator.api import names
from gpu_orchestrator.api.conditions import Conditions
from gpu_orchestrator.api.devices import Devices, Network, OptionalOnUnhealthy, Selector, Storage, Topology
from gpu_orchestrator.api.schema import INT32, INT64, Rule, about, number, text, unchanged
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

ClaimPhase: TypeAlias = Literal["Pending", "Reserved", "Bound", "Failed", "Released"]

NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


def _immutable(name: str) -> Rule:
    return Rule(unchanged(name), f"spec.{name} cannot be changed; create another GpuClaim", f".{name}")


class GpuClaimSpec(Wire, frozen=True, gc=False):
    """What is claimed. It cannot be changed: create another claim instead."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *map(_immutable, ("devices", "selector", "topology", "network", "storage", "gangRef", "gangSize")),
        _immutable("onUnhealthy"),
        Rule("!has(self.gangSize) || has(self.gangRef)", "spec.gangSize needs spec.gangRef", ".gangSize"),
    )

    devices: Devices = Devices()
    selector: Selector = Selector()
    topology: Topology = Topology()
    network: Network = Network()
    storage: Storage = Storage()
    on_unhealthy: OptionalOnUnhealthy = None
    gang_ref: Annotated[
        str, text("Gang that the claim belongs to: its members start together or not at all.", 1, 253, NAME)
    ] = ""
    gang_size: (
        Annotated[int, number("Members of the gang; nothing starts before all are there.", 1, 4096)] | None
    ) = None


class GpuClaimStatus(Wire, frozen=True, gc=False):
    """What was given. Written by the scheduler."""

    phase: (
        Annotated[
            ClaimPhase,
            about(
                "Pending: waits. Reserved: devices are held. Bound: the pod has them. Failed: it cannot be "
                "served. Released: the pod is gone and the claim can be used again."
            ),
        ]
        | None
    ) = None
    node_name: Annotated[str, text("Node of the devices.")] = ""
    gpu_ids: Annotated[
        list[Annotated[int, number("A device id.", 0, 1023)]], about("Ids of the devices on that node.")
    ] = []
    allocated: Annotated[str, text("Node and ids in one line, such as node-a:0,1.")] = ""
    message: Annotated[str, text("Why the claim is as it is, for people.")] = ""
    device_uuids: Annotated[
        list[Annotated[str, text("A device UUID.")]], about("UUIDs of the devices, in the order of gpuIds.")
    ] = field(default_factory=list, name="deviceUUIDs")
    pod_uid: Annotated[str, text("UID of the pod that the claim serves.")] = field(default="", name="podUID")
    bandwidth_gbps: Annotated[
        int, number("Bandwidth of the slowest pair of the devices, in GB/s.", 0, INT32)
    ] = field(default=0, name="bandwidthGBps")
    conditions: Conditions = []
    observed_generation: Annotated[int, number("Generation of the spec this speaks of.", 0, INT64)] = 0


class GpuClaim(Wire, frozen=True, gc=False):
    """A claim to exact GPUs of one node. A pod names it by the annotation gpu.scheduling/claim."""

    metadata: ObjectMeta
    spec: GpuClaimSpec
    status: GpuClaimStatus = GpuClaimStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, {names.LEASE_POD: 1024})


GPU_CLAIMS = Resource(GpuClaim, "GpuClaim", "gpuclaims", names.SCHEDULING_GROUP, names.SCHEDULING_VERSION)
