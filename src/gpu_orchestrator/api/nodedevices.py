"""What a node itself says of its devices: a person's annotation, its labels, a device plugin's count.

Without an agent, devices are numbered 0 to n-1. `unnumbered` returns why that would be wrong: a plugin that
shares GPUs counts each several times, one that cuts them counts slices, and a count that differs from the
labels leaves open which numbers are there. Used by `translate` and `inventory`.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from gpu_orchestrator.api import names, quantity
from gpu_orchestrator.api.kubernetes import Node as WireNode
from gpu_orchestrator.core.limits import MOST_DEVICES, MOST_MIB, MOST_NUMBER

_WHAT_TO_DO = f"run the agent there, or annotate the node with {names.NODE_DEVICES}"
SHARED = f"have GPUs that are shared (time-slicing or MPS) and cannot be numbered: {_WHAT_TO_DO}"
SLICED = f"have GPUs that are cut into slices (MIG or partitions) and cannot be numbered: {_WHAT_TO_DO}"
MISCOUNTED = f"have a GPU count that differs from their labels and cannot be numbered: {_WHAT_TO_DO}"
UNHEALTHY = "have an unhealthy GPU and no agent that reports which one: repair it, or run the agent there"
UNREADABLE = f"have an annotation {names.NODE_DEVICES} that cannot be used: correct it, or remove it"
KEPT_FOR_CLAIMS = f"are kept for claims (label {names.NODE_MODE})"
KEPT_FOR_PLUGIN = f"are kept for a device plugin (label {names.NODE_MODE})"
UNKNOWN_MODE = f"{names.NODE_MODE} must be {' or '.join(names.NODE_MODES)}; as if the node had no such label"

LONGEST_TEXT = 253
_WHOLE_PARTITION = "spx"
_INTEL_COUNT = re.compile(r"gpu\.intel\.com/device-id\..+\.count")


class DeviceEntry(
    msgspec.Struct, frozen=True, rename={"memory_mib": "memoryMiB", "bandwidth_gbps": "bandwidthGBps"}
):
    """The annotation `gpu.scheduling/devices` of a node. `count` says that the devices are numbered 0 to
    count-1, whatever a device plugin counts; `vendor` matters only where no device plugin names it."""

    count: int = 0
    vendor: str = "nvidia"
    model: str = ""
    memory_mib: int = 0
    bandwidth_gbps: int = 0
    islands: tuple[tuple[int, ...], ...] = ()

    @property
    def island_of(self) -> dict[int, int]:
        return {device: at for at, island in enumerate(self.islands) for device in island}

    @property
    def can_be_counted(self) -> bool:
        ids = [each for island in self.islands for each in island]
        return (
            0 <= self.count <= MOST_DEVICES
            and len(ids) == len(set(ids))
            and all(0 <= each < MOST_DEVICES for each in ids)
            and 0 <= self.memory_mib <= MOST_MIB
            and 0 <= self.bandwidth_gbps <= MOST_NUMBER
            and len(self.model) <= LONGEST_TEXT
            and self.vendor in names.VENDOR_OF.values()
        )


class BadEntry(ValueError):
    """The annotation is not what it should be, or has numbers that no node can have."""


def entry(seen: WireNode) -> DeviceEntry | None:
    """Return what a person wrote about the node's devices; None if nothing. Raises `BadEntry`."""
    if (text := seen.metadata.annotations.get(names.NODE_DEVICES)) is None:
        return None
    try:
        found = msgspec.json.decode(text, type=DeviceEntry)
    except (ValueError, RecursionError) as error:
        raise BadEntry(f"{names.NODE_DEVICES} cannot be read: {error}") from error
    if not found.can_be_counted:
        raise BadEntry(f"{names.NODE_DEVICES} has a number that is out of range, or a device twice")
    return found


def mode(seen: WireNode) -> str:
    """Return who gives the node's GPUs away, as its administrator says: `claims` or `plugin`. Empty if the
    label is missing, or is neither: then the kind of the node's first user keeps it."""
    said = seen.metadata.labels.get(names.NODE_MODE, "")
    return said if said in names.NODE_MODES else ""


def unknown_mode(old: WireNode | None, new: WireNode) -> str:
    """Return a value of the label that is new and means nothing; empty if there is none. The caller reports
    it: a node that nobody keeps apart should not look as if it were."""
    before = old.metadata.labels.get(names.NODE_MODE, "") if old else ""
    said = new.metadata.labels.get(names.NODE_MODE, "")
    return "" if said in ("", before, *names.NODE_MODES) else said


def unnumbered(seen: WireNode, resource: str, written: DeviceEntry | None) -> str:
    """Return why the devices of a node without a report cannot be numbered; empty if they can. `resource` is
    the one that counts its GPUs, empty if none does; `written` is its annotation."""
    if _has_unhealthy(seen, resource):
        return UNHEALTHY  # the annotation says how devices are numbered, not which of them is healthy
    if written and written.count:
        return ""
    labels, offered = seen.metadata.labels, seen.status.allocatable
    if any(_shares(labels)) or any(_is_shared(name) for name in _offered(offered)):
        return SHARED
    if any(_slices(labels)) or any(_is_slice(name) for name in _offered(offered)):
        return SLICED
    if resource and any(count != quantity.whole(offered[resource]) for count in _counts(labels, resource)):
        return MISCOUNTED
    return ""


def _has_unhealthy(seen: WireNode, resource: str) -> bool:
    """A device plugin that finds a device unhealthy takes it off `allocatable` and leaves it in
    `capacity`."""
    status = seen.status
    resources = (resource,) if resource else names.GPU_RESOURCES
    return any(
        quantity.whole(status.allocatable.get(name, "0")) < quantity.whole(status.capacity.get(name, "0"))
        for name in resources
    )


def _shares(labels: Mapping[str, str]) -> Iterator[bool]:
    """Of NVIDIA's feature discovery (`nvidia.com/gpu.replicas`, `nvidia.com/gpu.sharing-strategy`) and of GKE
    (`cloud.google.com/gke-gpu-sharing-strategy`)."""
    for key, value in labels.items():
        if key.endswith("sharing-strategy"):
            yield value not in ("", "none")
        elif key.endswith(".replicas") and names.is_gpu_resource(key):
            yield value not in ("", "0", "1")


def _slices(labels: Mapping[str, str]) -> Iterator[bool]:
    """With the MIG strategy `single`, slices are counted as whole GPUs; only their product tells."""
    yield labels.get("nvidia.com/mig.strategy") == "mixed"
    yield "-MIG-" in labels.get("nvidia.com/gpu.product", "")
    yield "nvidia.com/gpu.slices.gi" in labels
    yield "cloud.google.com/gke-gpu-partition-size" in labels
    yield not labels.get("amd.com/compute-memory-partition", _WHOLE_PARTITION).startswith(_WHOLE_PARTITION)


def _offered(allocatable: Mapping[str, str]) -> Iterator[str]:
    return (name for name, amount in allocatable.items() if amount != "0" and names.is_gpu_resource(name))


def _is_shared(name: str) -> bool:
    return name.endswith(".shared")


def _is_slice(name: str) -> bool:
    return name.startswith("nvidia.com/mig-") or ("px_nps" in name and _WHOLE_PARTITION not in name)


def _counts(labels: Mapping[str, str], resource: str) -> Iterator[int]:
    """Yield how many GPUs the node has by the labels of NVIDIA's and Intel's feature discovery."""
    if resource == "nvidia.com/gpu" and "nvidia.com/gpu.count" in labels:
        yield _number(labels["nvidia.com/gpu.count"])
    if resource.startswith("gpu.intel.com/"):
        each = [_number(value) for key, value in labels.items() if _INTEL_COUNT.fullmatch(key)]
        yield from [sum(each)] if each else []


def _number(text: str) -> int:
    """Return a small number; -1, which no node has, for anything else."""
    return int(text) if len(text) <= 4 and text.isascii() and text.isdecimal() else -1
