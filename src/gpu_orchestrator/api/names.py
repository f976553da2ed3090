"""Every string that is visible in a cluster, once: groups, labels, annotations, finalizers, leases …

All code takes them from here, so a reader can find all users of a string by its name.
"""

import re

# Groups and versions of our own resources.
WARP_GROUP = "gpu.warp.dev"
WARP_VERSION = "v1alpha1"
SCHEDULING_GROUP = "gpu.scheduling"
SCHEDULING_VERSION = "v1"

# Kubernetes' own group of gangs.
KUBE_SCHEDULING_GROUP = "scheduling.k8s.io"

# Annotations with which a pod requests GPUs.
CLAIM = "gpu.scheduling/claim"
CLAIM_TEMPLATE = "gpu.scheduling/claim-template"
GPUS = "gpu.scheduling/gpus"
GANG = "gpu.scheduling/gang"
GANG_SIZE = "gpu.scheduling/gang-size"
GANG_MIN = "gpu.scheduling/gang-min"
TOPOLOGY_REQUIRED = "gpu.scheduling/topology-required"
TOPOLOGY_PREFERRED = "gpu.scheduling/topology-preferred"
MAX_RUNTIME = "gpu.scheduling/max-runtime-seconds"
GANG_ANNOTATIONS = (GANG, GANG_SIZE, GANG_MIN, TOPOLOGY_REQUIRED, TOPOLOGY_PREFERRED)
STRATEGY = "gpu.scheduling/strategy"
MOVABLE = "gpu.scheduling/movable"
"""With the value "true": the pod may be evicted to make room, by `gpu-orchestrator defrag --apply`."""
ASKING_ANNOTATIONS = (CLAIM, CLAIM_TEMPLATE, GPUS)

# Annotations that the scheduler sets in the same write that binds the pod.
ALLOCATED = "gpu.scheduling/allocated"
VISIBLE_DEVICES = "gpu.scheduling/visible-devices"
LOCAL_DEVICES = "gpu.scheduling/local-devices"
MPS_FOLDER = "gpu.scheduling/mps-folder"
ANSWERING_ANNOTATIONS = (ALLOCATED, VISIBLE_DEVICES, LOCAL_DEVICES, MPS_FOLDER)

# Label of a pod: the GpuQueue that it belongs to, if several select its namespace. A device lease remembers
# under the same name, in an annotation, which queue its holder was bound in.
QUEUE = "gpu.scheduling/queue"

# Condition of a few bound pods of a gang: it has begun.
GANG_BEGUN = "gpu.scheduling/gang-begun"

# Annotation of a pod whose share of a GPU is held by MPS, set by the webhook; and the label that such a pod
# needs of a node, which only the agent's report gives.
SHARING = "gpu.scheduling/sharing"
MPS = "mps"

# Annotations that tell cluster-autoscaler and Karpenter not to end a pod to save its node.
KEEP_RUNNING = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

# A node's devices as a person describes them, where no agent reports any.
NODE_DEVICES = "gpu.scheduling/devices"

# Environment of the containers: the annotation that fills each variable, and what a Job receives. The first
# two tell NVIDIA's and AMD's container runtimes which devices to show; the others are read by the libraries.
NVIDIA_DEVICES_ENV = "NVIDIA_VISIBLE_DEVICES"
DEVICE_ENV = {
    NVIDIA_DEVICES_ENV: VISIBLE_DEVICES,
    "AMD_VISIBLE_DEVICES": VISIBLE_DEVICES,
    "ROCR_VISIBLE_DEVICES": VISIBLE_DEVICES,
    "CUDA_VISIBLE_DEVICES": LOCAL_DEVICES,
    "HIP_VISIBLE_DEVICES": LOCAL_DEVICES,
}
MODEL_NAME_ENV = "MODEL_NAME"
GPU_COUNT_ENV = "GPU_COUNT"

# Labels.
APP = "app"
WORKLOAD = "gpu.warp.dev/workload"
CONTROLLER = "gpu.warp.dev/controller"
CONTROLLER_NAME = "gpu-orchestrator"
# Kubernetes' label on the pods of a Job that numbers them.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
MANAGED = "gpu.scheduling/managed"
POD_UID = "gpu.scheduling/pod-uid"

LONGEST_LABEL = 63
LONGEST_NAME = 253
_OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")

# Annotation of a Job: a hash of the part of the workload's spec that it was made from.
MADE_FROM = "gpu.warp.dev/made-from"

# Annotations of a device lease, whose values may be longer than a label's.
LEASE_POD = "gpu.scheduling/pod"
LEASE_NAMESPACE = "gpu.scheduling/namespace"
LEASE_NODE = "gpu.scheduling/node"
LEASE_UUID = "gpu.scheduling/uuid"
LEASE_HOLDERS = "gpu.scheduling/holders"

# Finalizers.
WORKLOAD_FINALIZER = "gpu.warp.dev/finalizer"
CLAIM_FINALIZER = "gpu.scheduling/in-use"

# Extended resources that stand for whole GPUs, and the vendor behind each.
VENDOR_OF = {
    "nvidia.com/gpu": "nvidia",
    "amd.com/gpu": "amd",
    "gpu.intel.com/i915": "intel",
    "gpu.intel.com/xe": "intel",
}
GPU_RESOURCES = tuple(VENDOR_OF)

# Annotation of a node that `defrag --apply` has cordoned: the time at which it opens it again, at the latest.
CLOSED_UNTIL = "gpu.scheduling/closed-until"

# What Kubernetes counts of a claimed pod: 1000 for each whole device, on nodes and in the first container.
MILLIGPU = "gpu.scheduling/milligpu"

# Label of a node: who gives its GPUs away, the gpu-scheduler (claims) or a device plugin.
NODE_MODE = "gpu.scheduling/mode"
CLAIMS_MODE = "claims"
PLUGIN_MODE = "plugin"
NODE_MODES = (CLAIMS_MODE, PLUGIN_MODE)

# Labels of a namespace, set to "true" by an administrator: pods without a claim see no GPU, and pods may use
# the PriorityClass gpu-high.
HIDE_GPUS = "gpu.scheduling/hide-gpus"
ALLOW_HIGH_PRIORITY = "gpu.scheduling/allow-high-priority"

# Taint of a node where a pod uses a device that it was not given, if the agent's settings ask for it.
MISMATCH_TAINT = "gpu.scheduling/mismatch"

# Domains whose extended resources are GPUs, or parts of them such as `nvidia.com/mig-1g.10gb`, and words in
# the names of those that are not: network adapters, and Intel's access for monitoring.
GPU_DOMAINS = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
NOT_GPUS = ("nic", "rdma", "sriov", "hostdev", "mlnx", "_monitoring")

# PriorityClasses by the priority of a GPUWorkload.
PRIORITY_CLASSES = {"low": "gpu-low", "normal": "gpu-normal", "high": "gpu-high"}

# Processes: their namespace and names.
NAMESPACE = "gpu-orchestrator-system"
SCHEDULER = "gpu-scheduler"
KUBE_SCHEDULER = ("", "default-scheduler")
OPERATOR = "gpu-orchestrator-controller-manager"
WEBHOOK = "gpu-scheduler-webhook"
AGENT = "gpu-scheduler-agent"

# The Secret with the certificates of the webhook.
WEBHOOK_SECRET = "gpu-scheduler-webhook-cert"  # noqa: S105 - a name

# Leases: leader election, devices, and the agents' heartbeats.
OPERATOR_LEASE = "gpu-orchestrator.gpu.warp.dev"
DEVICE_LEASE_PREFIX = "gpu-"
AGENT_LEASE_PREFIX = "gpu-agent-"
LOOKED_AT = "gpu.scheduling/looked-at"
"""Annotation of the agent's Lease: when the last look began that its written report tells of."""

# Reasons of the operator's events.
SCHEDULED = "Scheduled"
FAILED_SCHEDULING = "FailedScheduling"
RETRYING = "Retrying"
MAX_RETRIES_EXCEEDED = "MaxRetriesExceeded"
JOB_CREATED = "JobCreated"
JOB_SUCCEEDED = "JobSucceeded"
JOB_FAILED = "JobFailed"
JOB_SUSPENDED = "JobSuspended"
SPEC_CHANGED = "SpecChanged"
PREEMPTED = "Preempted"

# Reasons of the scheduler's events about the health of devices that pods have.
DEVICE_UNHEALTHY = "DeviceUnhealthy"
DEVICES_RECOVERED = "DevicesRecovered"
GANG_BROKEN = "GangBroken"
PREEMPTS = "Preempting"
NOT_PREEMPTED = "PreemptionNotPossible"
OVERRUN = "RunsLongerThanDeclared"
NOT_OVERRUN_EVICTED = "OverrunNotEvicted"
EVICTED = "EvictedFromUnhealthyDevice"
NOT_EVICTED = "EvictionNotPossible"

# Reasons of the events about devices and claims that two have, and about a use that was not given.
DEVICE_CONFLICT = "DeviceConflict"
CLAIM_CONFLICT = "ClaimConflict"
DUPLICATE_DEVICE = "DuplicateDevice"
DEVICE_MISMATCH = "DeviceMismatch"


def is_gpu_resource(name: str) -> bool:
    """Return True if a pod with this extended resource may use a GPU, or a part of one."""
    return name.startswith(GPU_DOMAINS) and not any(word in name for word in NOT_GPUS)


def scheduler_lease(scheduler: str) -> str:
    """Return the leader's lease of the schedulers with this name: another name has another leader."""
    return f"{scheduler}.{SCHEDULING_GROUP}"


def is_object_name(text: str) -> bool:
    """Return True if an object can have this name."""
    return len(text) <= LONGEST_NAME and bool(_OBJECT_NAME.fullmatch(text))


def device_lease(node: str, device: int) -> str:
    return f"{DEVICE_LEASE_PREFIX}{node}-{device}"


def job(workload: str, uid: str, retry: int = 0) -> str:
    """Return the name of a workload's Job. It can be computed again: creating the Job twice creates it
    once."""
    return with_ending(workload, f"-job-{uid[:8]}" + (f"-r{retry}" if retry else ""))


def with_ending(stem: str, ending: str) -> str:
    """Return an object name with this ending, cut to what fits into a label and without dots, which a pod's
    host name may not have."""
    return stem.replace(".", "-")[: LONGEST_LABEL - len(ending)].rstrip("-") + ending
