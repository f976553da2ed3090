"""Shares of NVIDIA GPUs that hold: which MPS daemons a node needs, and what a pod needs to be a client. Pure.

There is one daemon for each namespace, set of devices and terms (memory, share), because a fault of one
client ends all clients of a daemon, and because the ceiling of a daemon is fixed before its first client.

    webhook     `client` prepares a pod
    scheduler   `answer` tells the pod, as it is bound, which daemon is its own
    agent       `daemons` are those that its node needs, from the leases of its devices

See docs/decisions/0014-shared-claims-that-hold.md.
"""

from collections.abc import Iterable
from dataclasses import replace

from gpu_orchestrator.api import claims, deviceenv, mps, names
from gpu_orchestrator.api.deviceleases import Hold
from gpu_orchestrator.api.devices import Devices, DeviceWish
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.mps import Daemon
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.core.answer import Placement

ROOT = "/run/gpu-mps"
"""Folder of all daemons of a node, and where a container finds the pipes of its own. Short, because the path
of a socket has 107 bytes at most."""
OWNED = "owned"
"""Below it the daemons have their folders. A pod without an answer would mount an empty folder here, and not
those of all others."""
FOLDER_ENV = "GPU_MPS_FOLDER"
PIPES = f"{OWNED}/$({FOLDER_ENV})/pipe"
"""What a client mounts of the volume, at `ROOT`. Read-only: it connects to the sockets there. A link that it
made there would be followed by a daemon of root, and a file would fill the node."""
VOLUME = "gpu-mps"


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


def answer(pod: Pod, spec: GpuClaimSpec | None, placement: Placement) -> dict[str, str]:
    """Return the annotation that tells a pod which daemon is its own; none if it is not a client of one."""
    if not claims.is_held_by_mps(pod, spec):
        return {}
    terms = placement.devices, placement.memory_mib, placement.milli
    return {names.MPS_FOLDER: mps.folder_of(pod.metadata.namespace, *terms)}


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
        if ROOT in [_map(each).get("mountPath") for each in _items(_map(container).get("volumeMounts"))]:
            return f"container {_map(container).get('name')} mounts {ROOT}, where MPS must be"
    return ""


def _client(container: Json, wish: Devices) -> Json:
    env: list[Json] = [deviceenv.variable(FOLDER_ENV, names.MPS_FOLDER), {"name": mps.PIPES, "value": ROOT}]
    if wish.memory_mib:
        env.append({"name": mps.MEMORY, "value": mps.limits(wish.count, wish.memory_mib)})
    if wish.share:
        env.append({"name": mps.PERCENT, "value": str(mps.percentage(wish.share))})
    mount = {"name": VOLUME, "mountPath": ROOT, "subPathExpr": PIPES, "readOnly": True}
    made = deviceenv.with_first(container, env)
    return {**made, "volumeMounts": [*_items(container.get("volumeMounts")), mount]}


def _map(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Json]:
    return value if isinstance(value, list) else []
