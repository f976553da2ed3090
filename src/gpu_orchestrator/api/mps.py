"""Shares of NVIDIA GPUs that hold: which MPS daemons a node needs, and what a pod needs to be a client. Pure.

There is one daemon for each namespace, set of devices and terms (memory, share), because a fault of one
client ends all clients of a daemon, and because the ceiling of a daemon is fixed before its first client.

    webhook     `client` prepares a pod
    scheduler   `answer` tells the pod, as it is bound, which daemon is its own
    agent       `daemons` are those that its node needs, from the leases of its devices

See docs/decisions/0014-shared-claims-that-hold.md.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu_orchestrator.api import claims, deviceenv, names
from gpu_orchestrator.api.deviceleases import Hold
from gpu_orchestrator.api.devices import Devices, DeviceWish
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.core.answer import Placement

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MEMORY, PERCENT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

ROOT = "/run/gpu-mps"
"""Folder of all daemons of a node, and where a container finds the pipes of its own. Short, because the path
of a socket has 107 bytes at most."""
OWNED = "owned"
"""Below it the daemons have their folders. A pod without an answer would mount an empty folder here, and not
those of all others."""
VOLUME, SHM = "gpu-mps", "/dev/shm"  # noqa: S108 - where processes of CUDA meet, not a temporary file
FOLDER_LENGTH = 20


@dataclass(frozen=True, slots=True, order=True)
class Daemon:
    """One daemon. `memory_mib` is the ceiling of each of its clients on each device, and `share` their part
    of the multiprocessors in thousandths; 0 for none. `uuids` are those of the devices, in their order."""

    namespace: str
    devices: tuple[int, ...]
    memory_mib: int = 0
    share: int = 0
    uuids: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return folder_of(self.namespace, self.devices, self.memory_mib, self.share)

    @property
    def commands(self) -> tuple[str, ...]:
        """Return what to tell the control program before the first client comes."""
        limits = [f"set_default_device_pinned_mem_limit {at} {self.memory_mib}M" for at in self._places]
        percent = [f"set_default_active_thread_percentage {percentage(self.share)}"] if self.share else []
        return (*(limits if self.memory_mib else ()), *percent)

    @property
    def _places(self) -> range:
        return range(len(self.devices))


def daemons(holds: Iterable[Hold]) -> tuple[Daemon, ...]:
    """Return the daemons that a node needs, from all holds on its devices. A holder of several devices needs
    one daemon for all of them: a process has one. A device without a UUID cannot be shown to a daemon."""
    uuids = dict[int, str]()
    held = dict[tuple[str, str], Daemon]()
    for hold in sorted(holds, key=lambda each: each.ref.device):
        holder = hold.holder
        if hold.exclusive or not holder.namespace or not hold.ref.uuid:
            continue
        uuids[hold.ref.device] = hold.ref.uuid
        known = held.get((holder.uid, holder.since))
        devices = (*(known.devices if known else ()), hold.ref.device)
        held[holder.uid, holder.since] = Daemon(holder.namespace, devices, holder.memory_mib, holder.share)
    named = {replace(each, uuids=tuple(uuids[at] for at in each.devices)) for each in held.values()}
    return tuple(sorted(named))


def folder_of(namespace: str, devices: Iterable[int], memory_mib: int, share: int) -> str:
    """Return the name of a daemon's folder: short, and the same for every process that asks."""
    text = f"{namespace}/{','.join(map(str, sorted(devices)))}/{memory_mib}/{share}"
    return hashlib.sha256(text.encode()).hexdigest()[:FOLDER_LENGTH]


def limits(devices: int, limit_mib: int) -> str:
    """Return the limit of device memory for each visible device, as the driver reads it."""
    return ",".join(f"{index}={limit_mib}M" for index in range(devices))


def percentage(share: int) -> int:
    """Return a share in thousandths as percent, of which a client has one at least."""
    return max(1, share // 10)


def answer(pod: Pod, spec: GpuClaimSpec | None, placement: Placement) -> dict[str, str]:
    """Return the annotation that tells a pod which daemon is its own; none if it is not a client of one."""
    if not claims.is_held_by_mps(pod, spec):
        return {}
    terms = placement.devices, placement.memory_mib, placement.milli
    return {names.MPS_FOLDER: folder_of(pod.metadata.namespace, *terms)}


def unenforced(pod: Pod, spec: GpuClaimSpec) -> str:
    """Return why nothing but the scheduler's count holds a bound pod to its share; empty if MPS does."""
    if not suits(spec.devices):
        return "MPS is for NVIDIA's GPUs only"
    if not claims.is_held_by_mps(pod, spec):
        return "the pod was not prepared for MPS when it was created"
    return ""


def suits(wish: DeviceWish) -> bool:
    """Return True if a claim can be held by MPS: it shares devices that can be NVIDIA's."""
    return wish.exclusivity == "Shared" and wish.vendor in (None, "nvidia")


def client(pod: Json, wish: Devices) -> Json | str:
    """Return the pod, prepared as a client of a daemon; or why it cannot be one."""
    spec, metadata = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return "the pod has no spec"
    if taken := _taken(spec):
        return taken
    volume: Json = {"name": VOLUME, "hostPath": {"path": ROOT, "type": "Directory"}}
    containers = {
        kind: [_client(each, wish) if isinstance(each, dict) else each for each in spec[kind]]
        for kind in ("initContainers", "containers")
        if isinstance(spec.get(kind), list)
    }
    annotations = {**_map(metadata.get("annotations")), names.SHARING: names.MPS}
    return {
        **pod,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**spec, **containers, "volumes": [*_items(spec.get("volumes")), volume]},
    }


def _taken(spec: Json) -> str:
    """Return what of the pod is in the way; empty if nothing is."""
    if any(_map(each).get("name") == VOLUME for each in _items(spec.get("volumes"))):
        return f"it has a volume {VOLUME} of its own"
    for container in (*_items(spec.get("initContainers")), *_items(spec.get("containers"))):
        mounts = [_map(each).get("mountPath") for each in _items(_map(container).get("volumeMounts"))]
        if found := next((each for each in (ROOT, SHM) if each in mounts), ""):
            return f"container {_map(container).get('name')} mounts {found}, where MPS must be"
    return ""


def _client(container: Json, wish: Devices) -> Json:
    folder = "GPU_MPS_FOLDER"
    env: list[Json] = [deviceenv.variable(folder, names.MPS_FOLDER), {"name": PIPES, "value": ROOT}]
    if wish.memory_mib:
        env.append({"name": MEMORY, "value": limits(wish.count, wish.memory_mib)})
    if wish.share:
        env.append({"name": PERCENT, "value": str(percentage(wish.share))})
    mounts = [
        {"name": VOLUME, "mountPath": path, "subPathExpr": f"{OWNED}/$({folder})/{part}"}
        for path, part in ((ROOT, "pipe"), (SHM, "shm"))
    ]
    made = deviceenv.with_first(container, env)
    return {**made, "volumeMounts": [*_items(container.get("volumeMounts")), *mounts]}


def _map(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Json]:
    return value if isinstance(value, list) else []
