"""GpuNodeStatus (`gpu.scheduling/v1`, `gns`, cluster-scoped): what a node's agent sees of its devices."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import field

from gpu_orchestrator.api import names
from gpu_orchestrator.api.devices import Vendor
from gpu_orchestrator.api.schema import INT32, Rule, about, moment, number, text
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire

Health: TypeAlias = Literal["Healthy", "Unhealthy", "Unknown"]
LinkType: TypeAlias = Literal["NVLink", "XGMI", "PCIe", "System"]


class MigSlice(Wire, frozen=True, gc=False):
    """Set for a device that is a slice of a partitioned GPU."""

    profile: Annotated[str, text("MIG profile, such as 1g.10gb.", 1, 32)]
    parent: Annotated[str, text("UUID of the GPU that the slice is part of.", 1, 253)]


class NodeDevice(Wire, frozen=True, gc=False):
    """One GPU, or one MIG slice, of the node. Readings that change all the time are sent with the next write
    and cause none of their own."""

    id: Annotated[int, number("Stays with its UUID when another device drops out.", 0, 1023)]
    health: Annotated[Health, about("Only Healthy devices are given to new pods.")] = "Unknown"
    unhealthy_reason: Annotated[str, text("Why the device is not Healthy.", 0, 1024)] = ""
    unhealthy_since: Annotated[str, moment("When it became Unhealthy; unset while it is Healthy.")] = ""
    recovered_at: Annotated[str, moment("When it was last Unhealthy and became Healthy again.")] = ""
    relapses: Annotated[int, number("How often it became Unhealthy within an hour of a recovery.", 0, 20)] = 0
    uuid: Annotated[str, text("UUID as the driver reports it.", 0, 253)] = ""
    vendor: Annotated[Vendor, about("Vendor of the device.")] | None = None
    model: Annotated[str, text("Model, such as NVIDIA-H100-80GB-HBM3.", 0, 253)] = ""
    memory_mib: Annotated[int, number("Memory, in MiB.", 0, INT32)] = field(default=0, name="memoryMiB")
    bandwidth_gbps: Annotated[int, number("Bandwidth to its best peer, in GB/s.", 0, INT32)] = field(
        default=0, name="bandwidthGBps"
    )
    island: (
        Annotated[int, number("Devices of one island reach each other over NVLink or XGMI.", 0, 1023)] | None
    ) = None
    numa_node: Annotated[int, number("NUMA node; -1 when unknown.", -1, 1023)] | None = None
    pci_bus_id: Annotated[str, text("PCI address, such as 00000000:3B:00.0.", 0, 64)] = ""
    mig: MigSlice | None = None
    in_use_by: Annotated[
        list[Annotated[str, text("A pod UID.", 1, 128)]],
        about("UIDs of the pods that use it.", at_most=1024, list_type="set"),
    ] = []
    processes: Annotated[int, number("Processes that have it open.", 0, INT32)] = 0
    used_memory_mib: Annotated[int, number("Memory in use when observed, in MiB.", 0, INT32)] = field(
        default=0, name="usedMemoryMiB"
    )
    utilization: Annotated[int, number("Utilization when observed, in percent.", 0, 100)] = 0
    temperature_c: Annotated[int, number("Temperature when observed, in °C.", -100, 1000)] = 0


class Link(Wire, frozen=True, gc=False):
    """How two devices of the node are connected."""

    pair: Annotated[
        list[Annotated[int, number("A device id.", 0, 1023)]],
        about("Ids of the two devices, the lower one first.", at_least=2, at_most=2),
    ]
    type: Annotated[LinkType, about("What connects them.")]
    bandwidth_gbps: Annotated[int, number("Bandwidth in GB/s, both directions added.", 0, INT32)] = field(
        default=0, name="bandwidthGBps"
    )


class Hca(Wire, frozen=True, gc=False):
    """One network adapter of the fabric."""

    name: Annotated[str, text("Name, such as mlx5_0.", 1, 253)]
    ports: Annotated[int, number("Active ports.", 0, 1024)] = 0
    speed_gbps: Annotated[int, number("Speed of a port, in Gbit/s.", 0, 1_000_000)] = 0


class NodeFabric(Wire, frozen=True, gc=False):
    """What the node's network and storage support."""

    hcas: Annotated[
        list[Hca], about("Network adapters.", at_most=1024, list_type="map", list_map_keys=["name"])
    ] = []
    ports: Annotated[int, number("Active ports of all adapters.", 0, 65_536)] = 0
    speed_gbps: Annotated[int, number("Speed of the fastest port, in Gbit/s.", 0, 1_000_000)] = 0
    gpu_direct_rdma: Annotated[bool, about("GPUs and adapters exchange data without the CPU.")] = field(
        default=False, name="gpuDirectRDMA"
    )
    cu_file: Annotated[bool, about("GPUDirect Storage (cuFile) works.")] = False


class NodeMps(Wire, frozen=True, gc=False):
    """Set where the agent keeps MPS daemons, which hold shares of NVIDIA GPUs to what was claimed."""

    ready: Annotated[bool, about("The agent can start daemons here.")] = False
    folders: Annotated[
        list[Annotated[str, text("Folder of a daemon.", 1, 64)]],
        about("Daemons that listen, by their folders.", at_most=4096, list_type="set"),
    ] = []
    refused: Annotated[
        list[Annotated[str, text("Folder of a daemon.", 1, 64)]],
        about("Daemons that there is no room for, by their folders.", at_most=1024, list_type="set"),
    ] = []


class GpuNodeStatusSpec(Wire, frozen=True, gc=False):
    """Which node this describes."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("self.nodeName == oldSelf.nodeName", "spec.nodeName cannot be changed", ".nodeName"),
    )

    node_name: Annotated[str, text("Name of the node.", 1, 253)]


class GpuNodeStatusStatus(Wire, frozen=True, gc=False):
    """The node's devices as its agent sees them. Written by the agent."""

    total: Annotated[int, number("Devices of the node.", 0, 1024)] = 0
    healthy: Annotated[int, number("Devices that are Healthy.", 0, 1024)] = 0
    in_use: Annotated[int, number("Devices that some pod uses.", 0, 1024)] = 0
    devices: Annotated[
        list[NodeDevice], about("The devices by id.", at_most=1024, list_type="map", list_map_keys=["id"])
    ] = []
    links: Annotated[list[Link], about("How pairs of devices are connected.", at_most=16_384)] = []
    fabric: NodeFabric = NodeFabric()
    mps: NodeMps | None = None
    driver: Annotated[str, text("Version of the driver.", 0, 253)] = ""
    observed_at: Annotated[str, moment("When the agent last looked.")] = ""


class GpuNodeStatus(Wire, frozen=True, gc=False):
    """The GPUs of one node: health, links, and who uses them. One object per node, of the node's name."""

    metadata: ObjectMeta
    spec: GpuNodeStatusSpec
    status: GpuNodeStatusStatus = GpuNodeStatusStatus()


GPU_NODE_STATUSES = Resource(
    GpuNodeStatus,
    "GpuNodeStatus",
    "gpunodestatuses",
    names.SCHEDULING_GROUP,
    names.SCHEDULING_VERSION,
    namespaced=False,
)
