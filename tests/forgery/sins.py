"""What of an admitted pod breaks the rules, in plain Python from the rules, not from the policies."""

import re
from collections import Counter
from pathlib import PurePosixPath

from gpu_orchestrator.api import names
from gpu_orchestrator.api.quantity import parse
from tests.forgery.calls import Json

DEVICE_FILES: tuple[str, ...] = ("dev", "proc", "sys", "run", "var/run", "var/lib/kubelet", "opt/cni")
DEVICE_FILES += ("etc/cdi", "etc/kubernetes", "etc/nvidia-container-runtime", "var/lib/containers")
DEVICE_FILES += ("etc/containerd", "etc/crio", "etc/docker", "etc/rancher")
DEVICE_FILES += ("var/lib/containerd", "var/lib/crio", "var/lib/docker", "var/lib/rancher")
CAPABILITIES = {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "DAC_READ_SEARCH"}
DEVICE_NOTES = re.compile(r"cdi\.k8s\.io/|cri-o\.Devices|(devices|mounts)\.(crio|nri)\.io|noderesource\.dev")


def sins(pod: Json, before: Json | None = None) -> list[str]:
    """Return what is wrong; `before` is the pod before a change."""
    notes = pod["metadata"].get("annotations", {})
    old = before["metadata"].get("annotations", {}) if before else {}
    found = [f"wrote {key}" for key in names.ANSWERING_ANNOTATIONS if notes.get(key) != old.get(key)]
    if before and any(notes.get(key) != old.get(key) for key in names.ASKING_ANNOTATIONS):
        found.append("asks for something else")
    counted = [_milligpu(each) for each in _containers(pod)]
    if not any(key in notes for key in names.ASKING_ANNOTATIONS):
        return found + ["counts without asking"] * any(counted)
    return found + [*_way(pod), *_view(pod)] + ([] if before else _count(pod))


def _containers(pod: Json) -> list[Json]:
    spec = pod["spec"]
    return [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]


def _way(pod: Json) -> list[str]:
    spec, notes = pod["spec"], pod["metadata"]["annotations"]
    found = []
    if len([key for key in names.ASKING_ANNOTATIONS if key in notes]) != 1:
        found.append("asks in several ways")
    if spec["schedulerName"] != names.SCHEDULER:
        found.append("another scheduler")
    if any(names.is_gpu_resource(name) for each in _containers(pod) for name in _requested(each)):
        found.append("asks a device plugin")
    return found


def _view(pod: Json) -> list[str]:
    """Return by what the pod could see GPUs of others."""
    spec, found = pod["spec"], []
    for each in _containers(pod):
        given = [one for one in each.get("env", []) if one["name"] in names.DEVICE_ENV]
        sources = {
            one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for one in given
        }
        wanted = {name: f"metadata.annotations['{key}']" for name, key in names.DEVICE_ENV.items()}
        if sources != wanted or len(given) != len(wanted):
            found.append(f"{each['name']} has other devices")
        if each.get("securityContext", {}).get("privileged"):
            found.append(f"{each['name']} is privileged")
        added = each.get("securityContext", {}).get("capabilities", {}).get("add", [])
        if any(one.upper().removeprefix("CAP_") in CAPABILITIES for one in added):
            found.append(f"{each['name']} has too many rights")
        if each.get("volumeDevices"):
            found.append(f"{each['name']} has a block device")
        if any("nvidia-container-devices" in one["mountPath"] for one in each.get("volumeMounts", [])):
            found.append(f"{each['name']} chooses devices by mounts")
    if spec.get("hostPID"):
        found.append("sees all processes")
    device_files = [PurePosixPath("/", one) for one in DEVICE_FILES]
    for volume in spec.get("volumes", []):
        if volume["name"] == "gpu-mps" and volume.get("hostPath", {}).get("path") == "/run/gpu-mps":
            continue  # its mounts are looked at below
        path = PurePosixPath("/", volume.get("hostPath", {}).get("path", "/ok").lstrip("/"))
        if any(path.is_relative_to(one) or one.is_relative_to(path) for one in device_files):
            found.append("mounts the devices of the node")
    found += _mps(pod)
    return found + ["adds devices by annotations"] * any(
        map(DEVICE_NOTES.search, pod["metadata"]["annotations"])
    )


def _mps(pod: Json) -> list[str]:
    mounts = [mount for each in _containers(pod) for mount in each.get("volumeMounts", [])]
    ours = [each for each in mounts if each["name"] == "gpu-mps"]
    others = any(each.get("subPathExpr", "") != "owned/$(GPU_MPS_FOLDER)/pipe" for each in ours)
    written = any(not each.get("readOnly", False) for each in ours)
    return ["mounts MPS daemons of others"] * others + ["writes to its MPS daemon"] * written


def _count(pod: Json) -> list[str]:
    notes = pod["metadata"]["annotations"]
    first, *others = _containers(pod)
    found = ["counts in another container"] * any(map(_milligpu, others))
    amounts = _milligpu(first)
    least = 0 if notes.get(names.GANG) and not notes.get(names.GPUS, "1").strip("0") else 1
    if len(amounts) != 2 or amounts[0] != amounts[1] or amounts[0] < least:
        return [*found, "is not counted"]
    is_wrong = names.GPUS in notes and amounts[0] != 1000 * int(notes[names.GPUS])
    return found + ["counts a wrong number"] * is_wrong


def _milligpu(container: Json) -> list[int]:
    resources = container.get("resources", {})
    parts = [resources.get(kind, {}) for kind in ("requests", "limits")]
    return [int(parse(each[names.MILLIGPU])) for each in parts if names.MILLIGPU in each]


def _requested(container: Json) -> Counter[str]:
    resources = container.get("resources", {})
    return Counter([*resources.get("requests", {}), *resources.get("limits", {})])
