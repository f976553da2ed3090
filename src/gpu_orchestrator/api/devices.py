"""What a claim asks of devices, nodes and fabric: shared by GpuClaim and by `claim` in a GPUWorkload."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import field

from gpu_orchestrator.api.schema import INT32, Rule, about, number, text
from gpu_orchestrator.api.wire import Wire

Policy: TypeAlias = Literal["contiguous", "spread", "preferIds", "packed"]
Exclusivity: TypeAlias = Literal["Exclusive", "Shared", "MIG"]
Vendor: TypeAlias = Literal["nvidia", "amd", "intel"]
TopologyMode: TypeAlias = Literal["Required", "Preferred", "Ignore"]
OnUnhealthy: TypeAlias = Literal["Ignore", "Event", "Evict"]
OptionalOnUnhealthy: TypeAlias = (
    Annotated[
        OnUnhealthy,
        about(
            "What happens to a pod when a device of its own becomes unhealthy. Ignore: nothing. Event: the "
            "pod and the claim say so. Evict: the pod is evicted as well, once, if its disruption budgets "
            "allow that. "
            "If left out, the scheduler's setting onUnhealthy decides."
        ),
    ]
    | None
)

MIG_PROFILE = r"^([1-7]c\.)?[1-7]g\.[1-9][0-9]*gb(\+[a-z][a-z0-9.]*)*$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

DEVICE_RULES = (
    Rule(
        "!has(self.memoryMiB) || self.exclusivity == 'Shared'",
        "devices.memoryMiB is only for devices.exclusivity Shared",
        ".memoryMiB",
    ),
    Rule(
        "!has(self.share) || self.exclusivity == 'Shared'",
        "devices.share is only for devices.exclusivity Shared",
        ".share",
    ),
    Rule(
        "!has(self.migProfile) || self.exclusivity == 'MIG'",
        "devices.migProfile is only for devices.exclusivity MIG",
        ".migProfile",
    ),
    Rule(
        "self.exclusivity != 'Shared' || has(self.share) || has(self.memoryMiB)",
        "devices.share, devices.memoryMiB or both must be given when devices.exclusivity is Shared",
        ".share",
    ),
    Rule(
        "self.exclusivity != 'MIG' || has(self.migProfile)",
        "devices.migProfile must be given when devices.exclusivity is MIG",
        ".migProfile",
    ),
    Rule(
        "self.policy != 'preferIds' || (has(self.preferIds) && self.preferIds.size() > 0)",
        "devices.preferIds must name at least one id when devices.policy is preferIds",
        ".preferIds",
    ),
)


class DeviceWish(Wire, frozen=True, gc=False):
    """Which devices of a node are wanted, and how they are held."""

    RULES: ClassVar[tuple[Rule, ...]] = DEVICE_RULES

    policy: Annotated[
        Policy,
        about(
            "Which devices inside a node: contiguous takes those with the fastest links, spread "
            "those that share the least, packed those that leave the largest whole rest, preferIds those "
            "named first."
        ),
    ] = "contiguous"
    prefer_ids: Annotated[
        list[Annotated[int, number("A device id.", 0, 1023)]],
        about(
            "Ids to try first with policy preferIds; others if these are taken.", at_most=64, list_type="set"
        ),
    ] = []
    exclusivity: Annotated[
        Exclusivity,
        about(
            "Exclusive: one holder. Shared: many holders, never oversold. MIG: a slice of a partitioned GPU."
        ),
    ] = "Exclusive"
    memory_mib: Annotated[int, number("Device memory of a Shared holder, in MiB.", 1, INT32)] | None = field(
        default=None, name="memoryMiB"
    )
    share: Annotated[int, number("Compute share of a Shared holder, in thousandths.", 1, 1000)] | None = None
    mig_profile: Annotated[
        str, text("MIG profile of the slice, such as 1g.10gb or 3g.40gb.", 1, 32, MIG_PROFILE)
    ] = ""
    vendor: Annotated[Vendor, about("Vendor of the devices; any if left out.")] | None = None
    model: Annotated[
        str, text("Model as the node reports it (NVIDIA-H100-80GB-HBM3); any if left out.", 1, 253)
    ] = ""


class Devices(DeviceWish, frozen=True, gc=False):
    """How many devices of one node are wanted, which ones, and how they are held."""

    count: Annotated[int, number("GPUs, all of one node.", 1, 64)] = 1


class ReplicaDevices(DeviceWish, frozen=True, gc=False):
    """Which devices each replica gets, and how they are held. gpuCount sets how many."""

    count: Annotated[int, number("Optional; if set, it must equal gpuCount.", 1, 64)] | None = None


class Selector(Wire, frozen=True, gc=False):
    """Which nodes may serve the claim."""

    match_labels: Annotated[
        dict[str, Annotated[str, text("A label value.", 0, 63, LABEL_VALUE)]],
        about("Labels that the node must have, all of them.", at_most=64),
    ] = {}


class Topology(Wire, frozen=True, gc=False):
    """How well the chosen devices must be connected."""

    mode: Annotated[
        TopologyMode,
        about(
            "Required refuses slower devices, Preferred takes them if there is nothing better, Ignore never "
            "asks."
        ),
    ] = "Preferred"
    min_bandwidth_gbps: (
        Annotated[
            int,
            number(
                "Least bandwidth of every pair of the chosen devices in GB/s, both directions added, as "
                "vendors quote it (A100 600, H100 900).",
                0,
                1_000_000,
            ),
        ]
        | None
    ) = field(default=None, name="minBandwidthGBps")


class Network(Wire, frozen=True, gc=False):
    """What the node's network must support."""

    rdma_required: Annotated[bool, about("The node must support GPUDirect RDMA.")] = False
    min_ports: Annotated[int, number("Least number of active fabric ports.", 1, 1024)] | None = None


class Storage(Wire, frozen=True, gc=False):
    """What the node's storage must support."""

    cu_file: Annotated[bool, about("The node must support GPUDirect Storage (cuFile).")] = False
