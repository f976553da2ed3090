"""Forged pods at their creation: answers of their own, other ways to a node, other devices and numbers."""

from collections.abc import Iterator
from typing import Any

from gpu_orchestrator.api import names, sharing
from gpu_orchestrator.api.devices import Devices
from tests.forgery.calls import APPLY, PODS, Call, Json, create
from tests.forgery.pods import (
    ASKS,
    CLAIM,
    PLACES,
    TEMPLATE,
    bare,
    changed,
    container,
    found,
    plain,
    ready,
    several,
)

ANSWERS = names.ANSWERING_ANNOTATIONS
VISIBLE, LOCAL = (f"metadata.annotations['{key}']" for key in (names.VISIBLE_DEVICES, names.LOCAL_DEVICES))

DEVICE_NOTES = (
    "cdi.k8s.io/gpu",
    "nvidia.cdi.k8s.io/all",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    "devices.crio.io/main",
    "devices.nri.io/pod",
    "cdi-devices.nri.io/container.main",
    "mounts.nri.io",
    "devices.noderesource.dev/container.main",
)
"""Annotations by which container runtimes, or their plugins, add devices."""
COUNT = "requests what they count for as gpu.scheduling/milligpu"


def calls() -> Iterator[Call]:
    yield from own_answers()
    yield from other_ways()
    yield from bad_texts()
    yield from other_variables()
    yield from other_sights()
    yield from other_resources()
    yield from other_numbers()


def own_answers() -> Iterator[Call]:
    """F1: annotations that only the scheduler writes, on a new pod."""
    for key in ANSWERS:
        says = f"{key} says which GPUs the pod was given, and only the gpu-scheduler writes it"
        for value in ("gpu-node-0:0,1", "", "all"):
            yield create(f"F1 plain pod with {key}={value}", plain(annotations={key: value}), says)
        for ask in ASKS:
            yield create(f"F1 {ask} pod with {key}", ready(ask, annotations={key: "all"}), says)
        applied = ready(name="applied", annotations={key: "0"})
        yield Call(
            f"F1 applied pod with {key}", "PATCH", f"{PODS}/applied", applied, says, content_type=APPLY
        )


def other_ways() -> Iterator[Call]:
    """F2 and F3: another scheduler, a node of the tenant's choice, several wishes at once."""
    others = (
        "default-scheduler",
        "volcano",
        "gpu-scheduler2",
        "my.gpu-scheduler.x",
        "gpu-schedule",
        "xgpu-scheduler",
    )
    for ask in ASKS:
        for name in others:
            made = changed(ready(ask), "spec.schedulerName", name)
            says = f"schedulerName is {name}, and only gpu-scheduler gives GPUs"
            yield create(f"F2 {ask} pod for {name}", made, says, is_repaired=name == "default-scheduler")
        without = changed(ready(ask), "spec.schedulerName", None)
        yield create(f"F2 {ask} pod without a scheduler", without, "schedulerName is", is_repaired=True)
        for node in ("gpu-node-0", "no-such-node"):
            made = ready(ask, nodeName=node)
            yield create(f"F3 {ask} pod on {node}", made, f"nodeName is {node}, and would pass")
    for first, second in (("gpus", "claim"), ("gpus", "template"), ("claim", "template")):
        made = changed(ready(first), "metadata.annotations", {**ASKS[first], **ASKS[second]})
        yield create(f"F8 {first} and {second} at once", made, "ask for GPUs in several ways; keep one")


def bad_texts() -> Iterator[Call]:
    """F8 and F16: numbers and names that are none, or lead elsewhere."""
    numbers = (
        "0",
        "00",
        "65",
        "-1",
        "+1",
        "1.0",
        "1e1",
        " 2",
        "2 ",
        "\u0662",
        "",
        "all",
        "9" * 40,
        "0x2",
        "2\n",
    )
    for text in numbers:
        made = changed(ready(), "metadata.annotations", {names.GPUS: text})
        yield create(f"F16 gpus={text!r}", made, "must be a whole number from 1 to 64")
    for number in ("0", "-1"):
        asked = {names.GPUS: number, names.GANG: "" if number == "0" else "g"}
        made = changed(ready(), "metadata.annotations", asked)
        yield create(f"F16 gpus={number!r} of a gang", made, "must be a whole number from 1 to 64")
    launcher = {names.GPUS: "0", names.GANG: "g", names.GANG_SIZE: "2"}
    made = changed(ready(), "metadata.annotations", launcher)
    what = "F16 capacity for GPUs that a launcher does not ask for"
    yield create(what, made, "requests what they count for", is_repaired=True)
    words = (
        "../whole-pair",
        "neighbour/whole-pair",
        "Whole-Pair",
        "",
        "a" * 254,
        "whole-pair\n",
        "whole_pair",
        "-x",
        "x-",
        "%2e%2e",
        "\u00e4",
    )
    for key, ask in ((names.CLAIM, "claim"), (names.CLAIM_TEMPLATE, "template")):
        for text in words:
            made = changed(ready(ask), "metadata.annotations", {key: text})
            yield create(
                f"F16 {ask}={text[:20]!r}", made, "must be the name of a GpuClaim in the pod's namespace"
            )


def sources(name: str) -> dict[str, Json]:
    """Return variables of this name that are not ours."""
    swapped = LOCAL if names.DEVICE_ENV[name] == names.VISIBLE_DEVICES else VISIBLE
    chosen = {"name": "settings", "key": "all"}
    return {
        "a literal": {"value": "all"},
        "an empty literal": {"value": ""},
        "a number": {"value": "0,1,2,3"},
        "the other annotation": {"valueFrom": {"fieldRef": {"fieldPath": swapped}}},
        "an own annotation": {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}},
        "a label": {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.VISIBLE_DEVICES}']"}}},
        "a ConfigMap": {"valueFrom": {"configMapKeyRef": chosen}},
        "a Secret": {"valueFrom": {"secretKeyRef": chosen}},
        "a resource": {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    }


def other_variables() -> Iterator[Call]:
    """F5 and F6: device variables that are missing, doubled or from elsewhere."""
    says = (
        "takes NVIDIA_VISIBLE_DEVICES, AMD_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES, "
        "HIP_VISIBLE_DEVICES from"
    )
    pod = several()
    for name in names.DEVICE_ENV:
        class_ = "F5" if name in ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES") else "F6"
        for place, path in PLACES.items():
            ours = found(pod, f"{path}.env")
            others = [each for each in ours if each["name"] != name]
            for source, value in sources(name).items():
                if place != "main" and source != "a literal":
                    continue
                for order, env in {
                    "": [*others, {"name": name, **value}],
                    " after ours": [*ours, {"name": name, **value}],
                    " before ours": [{"name": name, **value}, *ours],
                }.items():
                    if order and (source != "a literal" or place != "main"):
                        continue
                    id_ = f"{class_} {name} in {place} from {source}{order}"
                    yield create(id_, changed(pod, f"{path}.env", env), says, is_repaired=True)
            yield create(
                f"{class_} no {name} in {place}", changed(pod, f"{path}.env", others), says, is_repaired=True
            )
    for place, path in PLACES.items():
        settings = [{"configMapRef": {"name": "settings"}}]
        made = changed(changed(pod, f"{path}.env", None), f"{path}.envFrom", settings)
        yield create(f"F5 all variables of {place} by envFrom", made, says, is_repaired=True)
    for ask in ASKS:
        yield create(
            f"F5 {ask} pod as a user writes it",
            bare(ask),
            f"schedulerName is | {says} | {COUNT}",
            is_repaired=True,
        )


def other_sights() -> Iterator[Call]:
    """F7: ways to see the devices of the node."""
    pod = several()
    for place, path in PLACES.items():
        made = changed(pod, f"{path}.securityContext", {"privileged": True})
        yield create(f"F7 privileged {place}", made, "a privileged container sees all GPUs of its node")
        made = changed(pod, f"{path}.securityContext", {"capabilities": {"add": ["SYS_PTRACE", "SYS_ADMIN"]}})
        yield create(f"F7 SYS_ADMIN in {place}", made, "with one of the capabilities ALL, SYS_ADMIN")
    for name in (
        "ALL",
        "all",
        "sys_admin",
        "CAP_SYS_ADMIN",
        "SYS_MODULE",
        "SYS_RAWIO",
        "bpf",
        "dac_read_search",
    ):
        made = changed(pod, "spec.containers.0.securityContext", {"capabilities": {"add": [name]}})
        yield create(f"F7 capability {name}", made, "with one of the capabilities ALL, SYS_ADMIN")
    yield create("F7 hostPID", changed(pod, "spec.hostPID", True), "with hostPID a container reaches")
    paths: tuple[str, ...] = (
        "/",
        "//",
        "/.",
        "/./",
        "/dev",
        "/dev/",
        "//dev",
        "/./dev",
        "/dev/nvidia0",
        "/dev/dri",
        "/dev/shm",
    )
    paths += ("/proc", "/proc/1/root", "//proc//1", "/sys", "/sys/fs/cgroup", "dev", "./sys")
    paths += ("/run", "/run/nvidia/driver/dev", "/var/run/docker.sock", "/run/containerd/containerd.sock")
    paths += (
        "/var",
        "/var/lib/",
        "/var/lib/kubelet/device-plugins",
        "/etc",
        "/etc/cdi",
        "/etc//./kubernetes",
        "/etc/nvidia-container-runtime",
        "/etc/containerd",
        "/var/lib/containerd/io.containerd.grpc.v1.cri",
        "/var/lib/rancher",
        "/opt/cni/bin",
    )
    for path in paths:
        volumes = [{"name": "other", "emptyDir": {}}, {"name": "host", "hostPath": {"path": path}}]
        yield create(
            f"F7 hostPath {path}",
            changed(pod, "spec.volumes", volumes),
            "a hostPath of /, /dev, /proc, /sys, /run or of files of kubelet or runtime",
        )
    yield from other_daemons()
    block = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
    for place, path in PLACES.items():
        made = changed(pod, "spec.volumes", [block])
        made = changed(made, f"{path}.volumeDevices", [{"name": "disk", "devicePath": "/dev/nvidia0"}])
        yield create(f"F7 block device in {place}", made, "has no raw block devices")
        for mount in ("/var/run/nvidia-container-devices/all",):
            made = changed(pod, "spec.volumes", [{"name": "null", "hostPath": {"path": "/opt/null"}}])
            made = changed(made, f"{path}.volumeMounts", [{"name": "null", "mountPath": mount}])
            yield create(f"F7 mount {mount} in {place}", made, "chooses GPUs past the gpu-scheduler")
    for key in DEVICE_NOTES:
        made = ready(annotations={key: "nvidia.com/gpu=all"})
        yield create(f"F7 annotation {key}", made, f"{key} adds devices past the gpu-scheduler")
    many = [{"name": f"V{number}", "value": ""} for number in range(2100)]
    large = changed(pod, "spec.containers.0.env", [*found(pod, "spec.containers.0.env"), *many])
    large = changed(large, "spec.containers.1.securityContext", {"privileged": True})
    yield create("F7 privileged in a pod too large to be judged", large, "has at most 64 containers")


def mps_client(name: str = "p") -> Json:
    """Return a claimed pod that the webhook prepared as a client of MPS."""
    made = sharing.client(ready("claim", name), Devices(count=1, memory_mib=1024, share=250))
    assert isinstance(made, dict)
    return made


def other_daemons() -> Iterator[Call]:
    """F7: folders of MPS daemons of others."""
    pod, says = mps_client(), "the rest belongs to MPS daemons of others"
    mounts, env = "spec.containers.0.volumeMounts", "spec.containers.0.env"
    whole = {"name": sharing.VOLUME, "mountPath": "/all"}
    parts: dict[str, Json] = {
        "all": {"readOnly": True},
        "a folder": {"subPath": "owned/0123456789abcdef0123/pipe", "readOnly": True},
        "another part": {"subPathExpr": "owned/$(GPU_MPS_FOLDER)", "readOnly": True},
        "another variable": {"subPathExpr": "owned/$(A)/pipe", "readOnly": True},
        "its own pipes, to write,": {"subPathExpr": sharing.PIPES},
        "its own pipes, readOnly false,": {"subPathExpr": sharing.PIPES, "readOnly": False},
        "the log": {"subPathExpr": "owned/$(GPU_MPS_FOLDER)/log", "readOnly": True},
    }
    for what, part in parts.items():
        made = changed(pod, mounts, [*found(pod, mounts), {**whole, **part}])
        yield create(f"F7 mounts {what} of the MPS daemons", made, says)
    forged = {"name": sharing.FOLDER_ENV, "value": "0123456789abcdef0123"}
    yield create("F7 names an MPS daemon", changed(pod, env, [*found(pod, env), forged]), says)
    without = [each for each in found(pod, env) if each["name"] != sharing.FOLDER_ENV]
    yield create("F7 names an MPS daemon by envFrom", changed(pod, env, without), says)
    volume = {"name": "other", "hostPath": {"path": sharing.ROOT}}
    yield create(
        "F7 MPS daemons by another volume",
        changed(pod, "spec.volumes", [*found(pod, "spec.volumes"), volume]),
        "a hostPath of /, /dev, /proc, /sys, /run or of files of kubelet or runtime",
    )


def other_resources() -> Iterator[Call]:
    """A device plugin's resource beside a claim: the plugin would choose devices of its own."""
    resources = (*names.GPU_RESOURCES, "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared")
    pod = several()
    for name in resources:
        for place in ("main", "side", "init"):
            path = f"{PLACES[place]}.resources"
            old: Any = found(pod, path) if place == "main" else {}
            amounts = {kind: {**old.get(kind, {}), name: "1"} for kind in ("requests", "limits")}
            yield create(
                f"F3 {name} in {place}",
                changed(pod, path, amounts),
                "the plugin would choose GPUs of its own",
            )


def other_numbers() -> Iterator[Call]:
    """Numbers of `gpu.scheduling/milligpu` that hide what the pod takes, or block what others could."""
    key = names.MILLIGPU
    pod = several()
    main, asked = "spec.containers.0.resources", COUNT
    for amount in ("1", "1999", "2001", "20k", "1M"):
        both = {"requests": {key: amount}, "limits": {key: amount}}
        says = f"the pod asks for 2 GPUs, each of which counts 1000, and requests {_number(amount)} "
        yield create(f"F11 2 GPUs that count {amount}", changed(pod, main, both), says, is_repaired=True)
    for ask in ASKS:
        nothing = changed(several(ask), main, {})
        yield create(f"F11 {ask} pod that counts nothing", nothing, asked, is_repaired=True)
        zero = changed(several(ask), main, {"requests": {key: "0"}, "limits": {key: "0"}})
        yield create(f"F11 {ask} pod that counts zero", zero, asked, is_repaired=True)
    for place in ("side", "init", "sidecar"):
        both = {"requests": {key: "1000"}, "limits": {key: "1000"}}
        made = changed(pod, f"{PLACES[place]}.resources", both)
        yield create(f"F11 counted in {place}, too", made, "the first container requests", is_repaired=True)
        containers = [container("main"), container("side")]
        made = plain(
            containers=containers,
            initContainers=[container("init"), container("proxy", restartPolicy="Always")],
        )
        made = changed(made, f"{PLACES[place]}.resources", both)
        yield create(
            f"F11 plain pod that counts in {place}", made, "counts the GPUs of pods that ask for them"
        )
    both = {"requests": {key: "1000"}, "limits": {key: "1000"}}
    yield create(
        "F11 plain pod that counts", changed(plain(), main, both), "counts the GPUs of pods that ask for them"
    )
    for ask, name in (("claim", CLAIM), ("template", TEMPLATE)):
        made = changed(ready(ask), "metadata.annotations", {next(iter(ASKS[ask])): f"{name}-not-there"})
        made = changed(made, main, None)
        yield create(f"F8 {ask} that is not there", made, asked)


def _number(text: str) -> str:
    return text.replace("k", "000").replace("M", "000000")
