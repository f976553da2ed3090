"""GPUWorkload (`gpu.warp.dev/v1alpha1`, `gpuw`): a model to run on a number of GPUs, once or as a gang."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Annotated, ClassVar, Literal, TypeAlias

from gpu_orchestrator.api import names
from gpu_orchestrator.api.conditions import Conditions
from gpu_orchestrator.api.devices import (
    Network,
    OptionalOnUnhealthy,
    ReplicaDevices,
    Selector,
    Storage,
    Topology,
)
from gpu_orchestrator.api.podtemplate import PodTemplate
from gpu_orchestrator.api.schema import INT32, INT64, Rule, about, moment, number, text, unchanged
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire

Priority: TypeAlias = Literal["low", "normal", "high"]
Phase: TypeAlias = Literal["Pending", "Scheduling", "Scheduled", "Running", "Failed", "Succeeded"]

OnNoCapacity: TypeAlias = Literal["Retry", "Wait"]

STRATEGY = r"^[A-Za-z][-A-Za-z0-9_.]*$"

# Condition types.
SCHEDULED = "Scheduled"
RUNNING = "Running"
COMPLETE = "Complete"
FAILED = "Failed"

# Phases in which a Job made from the spec runs, or has run for the last time.
SETTLED: tuple[Phase, ...] = ("Scheduled", "Running", "Failed", "Succeeded")
FINAL: tuple[Phase, ...] = ("Failed", "Succeeded")

MOST_INDEX = 1023


class RetryPolicy(Wire, frozen=True, gc=False):
    """How often and how soon a workload is retried if no node fits it or its Job failed."""

    max_retries: Annotated[int, number("Tries after which the workload is Failed.", 1, 10)] = 3
    backoff_seconds: Annotated[
        int, number("Wait before the first new try; doubled for each further one, up to 5 minutes.", 1, 300)
    ] = 30
    on_no_capacity: (
        Annotated[
            OnNoCapacity,
            about(
                "What happens if no node has room. Retry: that costs a try. Wait: it costs none, the "
                "workload waits until there is room, and only failed Jobs cost tries. The operator's flag "
                "--on-no-capacity sets what is done if this is left out."
            ),
        ]
        | None
    ) = None


class WorkloadClaim(Wire, frozen=True, gc=False):
    """Requests exact devices from the gpu-scheduler for each replica, with the fields of a GpuClaim."""

    devices: ReplicaDevices = ReplicaDevices()
    selector: Selector = Selector()
    topology: Topology = Topology()
    network: Network = Network()
    storage: Storage = Storage()
    on_unhealthy: OptionalOnUnhealthy = None


class GPUWorkloadSpec(Wire, frozen=True, gc=False):
    """What to run, on how many GPUs, and how a node is chosen."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.claim) || !has(self.claim.devices.count) || self.claim.devices.count == self.gpuCount",
            "spec.claim.devices.count must be the same as spec.gpuCount; it may be left out",
            ".claim.devices.count",
        ),
    )

    model_name: Annotated[str, text("Name of the model or workload.", 1, 255)]
    gpu_count: Annotated[int, number("GPUs of each replica.", 1, 8)]
    priority: Annotated[
        Priority, about("Which PriorityClass the pods get: gpu-low, gpu-normal or gpu-high.")
    ] = "normal"
    scheduling_strategy: Annotated[
        str,
        text(
            "How a node is chosen: leastLoaded takes the one with most free GPUs, random any that fits, "
            "costOptimized one labelled as cheap, binPack the fullest that fits, leastFragmenting the one "
            "whose rest stays most useful, topology the one whose devices talk fastest. Installed packages "
            "may add others; the status of a workload with an unknown one lists those that are known.",
            1,
            63,
            STRATEGY,
        ),
    ] = "leastLoaded"
    retry_policy: RetryPolicy = RetryPolicy()
    template: PodTemplate | None = None
    replicas: Annotated[int, number("More than one is a gang: all start or none.", 1, 512)] = 1
    claim: WorkloadClaim | None = None
    ttl_seconds_after_finished: (
        Annotated[int, number("Seconds after which a finished Job is removed, as in a Job.", 0, INT32)] | None
    ) = None
    suspend: Annotated[bool, about("True keeps the workload from starting, and stops it if it runs.")] = False
    max_runtime_seconds: (
        Annotated[int, number("Seconds after which the workload is stopped and Failed.", 1, INT32)] | None
    ) = None


class AssignedDevice(Wire, frozen=True, gc=False):
    """A GPU that the workload has, or had when it ended."""

    index: Annotated[int, number("Number of the device on its node.", 0, MOST_INDEX)]
    uuid: Annotated[str, text("UUID of the device, if it is known.", 0, 253)] = ""
    model: Annotated[str, text("Model of the device, if it is known.", 0, 253)] = ""


class GPUWorkloadStatus(Wire, frozen=True, gc=False):
    """How far the workload has come. Written by the operator."""

    phase: (
        Annotated[
            Phase,
            about(
                "Pending: waits for a node. Scheduling: a node is being chosen. Scheduled: it has one. "
                "Running: its pods run. Failed and Succeeded are final."
            ),
        ]
        | None
    ) = None
    assigned_node: Annotated[str, text("Node it runs on; the first one of a gang.")] = ""
    assigned_nodes: Annotated[
        list[Annotated[str, text("A node.")]], about("Nodes of a gang, by replica.", at_most=512)
    ] = []
    devices: Annotated[
        list[AssignedDevice],
        about(
            "GPUs that it has. Empty if a device plugin chose them, since it tells only the kubelet.",
            at_most=64,
        ),
    ] = []
    allocated: Annotated[str, text("Node and device numbers in one line, such as node-a:0,1.")] = ""
    job_name: Annotated[str, text("Job that runs it.")] = ""
    last_schedule_time: Annotated[str, moment("When a place was last sought.")] = ""
    retry_count: Annotated[int, number("Tries that have failed.", 0, INT32)] = 0
    message: Annotated[str, text("Why the workload is as it is, for people.")] = ""
    observed_generation: Annotated[int, number("Generation of the spec this speaks of.", 0, INT64)] = 0
    conditions: Conditions = []
    start_time: Annotated[str, moment("When its pods first ran.")] = ""
    completion_time: Annotated[str, moment("When it became Succeeded or Failed.")] = ""
    next_retry_time: Annotated[str, moment("When it is tried again at the latest.")] = ""


def _settled(name: str) -> Rule:
    phases = ", ".join(f"'{phase}'" for phase in SETTLED)
    is_settled = f"has(oldSelf.status) && has(oldSelf.status.phase) && oldSelf.status.phase in [{phases}]"
    return Rule(
        f"!({is_settled}) || ({unchanged(f'spec.{name}')})",
        f"spec.{name} cannot be changed once the workload is scheduled; create another GPUWorkload",
        f".spec.{name}",
    )


class GPUWorkload(Wire, frozen=True, gc=False):
    """A model or other workload that needs GPUs. The operator finds a node and runs it there as a Job."""

    # At the root, because a rule at spec cannot see the status.
    RULES: ClassVar[tuple[Rule, ...]] = tuple(
        map(_settled, ("modelName", "gpuCount", "replicas", "template", "claim"))
    )

    metadata: ObjectMeta
    spec: GPUWorkloadSpec
    status: GPUWorkloadStatus = GPUWorkloadStatus()


GPU_WORKLOADS = Resource(GPUWorkload, "GPUWorkload", "gpuworkloads", names.WARP_GROUP, names.WARP_VERSION)
