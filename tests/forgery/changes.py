"""Forged changes of pods that are there: `bound` and `waiting` are claimed, `plain` is not."""

from collections.abc import Iterator
from typing import Any

from gpu_orchestrator.api import names
from tests.forgery.calls import (
    APPLY,
    JSON_PATCH,
    PODS,
    STRATEGIC,
    TEAM,
    Call,
    Json,
    annotate,
    merge,
)
from tests.forgery.creations import DEVICE_NOTES, sources
from tests.forgery.pods import container, ready

BOUND, WAITING, PLAIN, NAMED = "bound", "waiting", "plain", "named"
"""Pods of the tenant: with devices, without a node, without a claim, and waiting with a claim by name."""
NODE = "gpu-node-0"
ANSWER = {
    names.ALLOCATED: f"{NODE}:0,1",
    names.VISIBLE_DEVICES: "GPU-0,GPU-1",
    names.LOCAL_DEVICES: "GPU-0,GPU-1",
    names.MPS_FOLDER: "team-0",
}
"""What the scheduler wrote on the pod `bound`."""
STATUS = "cannot write the status of a pod with GPUs"
ENV = "takes NVIDIA_VISIBLE_DEVICES"


def calls() -> Iterator[Call]:
    yield from answers()
    yield from asks()
    yield from status()
    yield from forced_ends()
    yield from bindings()
    yield from late_containers()
    yield from late_annotations()
    yield from growth()


def answers() -> Iterator[Call]:
    """F1: set, change or remove what the scheduler writes, by every kind of request."""
    for key in names.ANSWERING_ANNOTATIONS:
        says = f"{key} says which GPUs the pod was given, and only the gpu-scheduler writes it"
        pointer = f"/metadata/annotations/{key.replace('/', '~1')}"
        for pod in (BOUND, WAITING, PLAIN):
            path = f"{PODS}/{pod}"
            for part in ("", "/status"):
                at = f"F1 {pod}{part} {key}"
                yield merge(f"{at} set", path + part, annotate("gpu-node-1:7", key), says)
                if pod == WAITING:
                    continue
                yield Call(
                    f"{at} set strategically",
                    "PATCH",
                    path + part,
                    annotate("7", key),
                    says,
                    content_type=STRATEGIC,
                )
                applied = {"apiVersion": "v1", "kind": "Pod", **annotate("7", key)}
                yield Call(f"{at} applied", "PATCH", path + part, applied, says, content_type=APPLY)
                change: list[Json] = [{"op": "add", "path": pointer, "value": "7"}]
                yield Call(f"{at} by JSON patch", "PATCH", path + part, change, says, content_type=JSON_PATCH)
            yield merge(f"F1 {pod}/resize {key}", f"{path}/resize", annotate("7", key), is_dropped=True)
            late = {**annotate("7", key), "spec": {"ephemeralContainers": []}}
            yield merge(
                f"F1 {pod}/ephemeralcontainers {key}", f"{path}/ephemeralcontainers", late, is_dropped=True
            )
        for part in ("", "/status"):
            path = f"{PODS}/{BOUND}{part}"
            yield merge(f"F1 {BOUND}{part} {key} removed", path, annotate(None, key), says)
            yield merge(f"F1 {BOUND}{part} {key} emptied", path, annotate("", key), says)
            gone: list[Json] = [{"op": "remove", "path": pointer}]
            yield Call(
                f"F1 {BOUND}{part} {key} removed by JSON patch",
                "PATCH",
                path,
                gone,
                says,
                content_type=JSON_PATCH,
            )
    for part in ("", "/status"):
        nothing: list[Json] = [{"op": "remove", "path": "/metadata/annotations"}]
        says = "says which GPUs the pod was given | cannot be set, changed or removed"
        at = f"{PODS}/{BOUND}{part}"
        yield Call(f"F1 {BOUND}{part} all removed", "PATCH", at, nothing, says, content_type=JSON_PATCH)


def asks() -> Iterator[Call]:
    """F8 and F10: ask for something else, or with others, once the pod is counted and perhaps bound."""
    for key in names.ASKING_ANNOTATIONS:
        for pod in (BOUND, WAITING, PLAIN, NAMED):
            for part in ("", "/status"):
                says = f"{key} cannot be set, changed or removed after the creation of the pod"
                yield merge(f"F8 {pod}{part} asks by {key}", f"{PODS}/{pod}{part}", annotate("1", key), says)
    for pod in (BOUND, WAITING, PLAIN, NAMED):
        for part in ("", "/status"):
            says = f"{names.GANG} cannot be set, changed or removed after the creation of the pod"
            joined = annotate("others", names.GANG)
            yield merge(f"F10 {pod}{part} joins a gang", f"{PODS}/{pod}{part}", joined, says)
    for pod, key in ((BOUND, names.GPUS), (WAITING, names.GPUS), (NAMED, names.CLAIM)):
        for value in (None, "", "8"):
            says = f"{key} cannot be set, changed or removed"
            yield merge(f"F8 {pod} asks for {value!r}", f"{PODS}/{pod}", annotate(value, key), says)


def status() -> Iterator[Call]:
    """A pod that seems to have ended would lose its devices to others while it runs."""
    says = STATUS
    ended = {"type": "Ready", "status": "False", "reason": "PodCompleted"}
    for pod in (BOUND, WAITING, NAMED):
        for phase in ("Succeeded", "Failed", "Running"):
            yield merge(f"F1 {pod} seems {phase}", f"{PODS}/{pod}/status", {"status": {"phase": phase}}, says)
        conditions: Json = {"status": {"conditions": [ended]}}
        yield merge(f"F1 {pod} seems to have ended", f"{PODS}/{pod}/status", conditions, says)
        nominated: Json = {"status": {"nominatedNodeName": NODE}}
        either = f"{says} | may not be set on pods that are already bound"
        yield merge(f"F10 {pod} seems nominated", f"{PODS}/{pod}/status", nominated, either)


def forced_ends() -> Iterator[Call]:
    """A pod that is gone at once would lose its devices to others while its containers run."""
    says, at = "cannot end a pod with GPUs at once", f"{PODS}/{BOUND}"
    now = ending_within(0)
    yield Call("F1 bound deleted by force", "DELETE", at, now, says)
    several = f"{PODS}?fieldSelector=metadata.name%3D{BOUND}"
    yield Call("F1 bound deleted with others by force", "DELETE", several, now, says)
    options = {"gracePeriodSeconds": 0}
    evicted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": BOUND}}
    evicted = {**evicted, "deleteOptions": options}
    yield Call("F1 bound evicted by force", "POST", f"{at}/eviction", evicted, says)


def ending_within(seconds: int) -> Json:
    """Return the body of a deletion. The API server then reads no options from the address."""
    options = {"gracePeriodSeconds": seconds, "dryRun": ["All"]}
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options}


def bindings() -> Iterator[Call]:
    """F4: bind a pod past the scheduler."""
    for pod in (WAITING, NAMED, PLAIN):
        for kind, path in (
            ("pods/binding", f"{PODS}/{pod}/binding"),
            ("bindings", f"/api/v1/namespaces/{TEAM}/bindings"),
        ):
            bare = binding(pod)
            yield Call(
                f"F4 {pod} bound by {kind}", "POST", path, bare, "may bind pods in this namespace alone"
            )
            for key in (*names.ANSWERING_ANNOTATIONS, names.GPUS):
                made = binding(pod, annotations={key: "gpu-node-0:0"})
                says = "only the gpu-scheduler binds pods with annotations of gpu.scheduling/"
                yield Call(f"F4 {pod} bound by {kind} with {key}", "POST", path, made, says)
    made = binding(PLAIN, annotations={names.ALLOCATED: "gpu-node-0:0"})
    says = "only the gpu-scheduler binds pods with annotations"
    for user in ("system:kube-scheduler", "admin"):
        yield Call(f"F4 with answers by {user}", "POST", f"{PODS}/{PLAIN}/binding", made, says, user)
    for pod in (BOUND, WAITING):
        yield merge(
            f"F3 {pod} moved", f"{PODS}/{pod}", {"spec": {"nodeName": "gpu-node-1"}}, "spec: Forbidden"
        )
        other = {"spec": {"schedulerName": "default-scheduler"}}
        yield merge(f"F2 {pod} for another scheduler", f"{PODS}/{pod}", other, "spec: Forbidden")


def binding(pod: str, **meta: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, **meta},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }


def late_containers() -> Iterator[Call]:
    """F5, F6, F7 and F11: a container added to a pod with devices."""
    ours = ready()["spec"]["containers"][0]["env"]
    for pod in (BOUND,):
        yield late(f"F11 {pod} with a bare debugger", pod, {}, ENV)
        privileged = {"env": ours, "securityContext": {"privileged": True}}
        yield late(
            f"F7 {pod} with a privileged debugger",
            pod,
            privileged,
            "a privileged container",
            is_repaired=False,
        )
        able = {"env": ours, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
        says = "with one of the capabilities"
        yield late(f"F7 {pod} with a debugger that has SYS_ADMIN", pod, able, says, is_repaired=False)
        mount = {
            "env": ours,
            "volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}],
        }
        yield late(f"F7 {pod} with a debugger that mounts devices", pod, mount, "", is_repaired=False)
        for name in names.DEVICE_ENV:
            others = [each for each in ours if each["name"] != name]
            for source in ("a literal", "an own annotation", "a ConfigMap"):
                value = sources(name)[source]
                env = [*others, {"name": name, **value}]
                yield late(f"F11 {pod} with a debugger that has {name} from {source}", pod, {"env": env}, ENV)
            yield late(f"F11 {pod} with a debugger without {name}", pod, {"env": others}, ENV)
            twice = [*ours, {"name": name, "value": "all"}]
            yield late(f"F11 {pod} with a debugger that has {name} twice", pod, {"env": twice}, ENV)


def late(id_: str, pod: str, more: Json, says: str, *, is_repaired: bool = True) -> Call:
    body = {"spec": {"ephemeralContainers": [container("debugger", **more)]}}
    path = f"{PODS}/{pod}/ephemeralcontainers"
    return Call(id_, "PATCH", path, body, says, content_type=STRATEGIC, is_repaired=is_repaired)


def late_annotations() -> Iterator[Call]:
    """F7 and F11: annotations that add devices when the node starts the pod's sandbox again."""
    for pod in (BOUND, WAITING):
        for key in DEVICE_NOTES:
            says = f"{key} adds devices past the gpu-scheduler"
            at, body = f"{PODS}/{pod}", annotate("nvidia.com/gpu=all", key)
            yield merge(f"F11 {pod} annotated with {key}", at, body, says)


def growth() -> Iterator[Call]:
    """F11: more resources after admission."""
    for pod in (BOUND, PLAIN):
        for name in (names.MILLIGPU, "nvidia.com/gpu", "amd.com/gpu"):
            resources = {"limits": {name: "8k"}, "requests": {name: "8k"}}
            body = {"spec": {"containers": [container(resources=resources)]}}
            path, says = f"{PODS}/{pod}/resize", "only cpu and memory resources are mutable"
            yield Call(f"F11 {pod} resized to 8000 {name}", "PATCH", path, body, says, content_type=STRATEGIC)
            path, says = f"{PODS}/{pod}", "spec: Forbidden"
            yield Call(f"F11 {pod} updated to 8000 {name}", "PATCH", path, body, says, content_type=STRATEGIC)
        for field in ("hostPID", "hostNetwork"):
            yield merge(f"F7 {pod} with {field}", f"{PODS}/{pod}", {"spec": {field: True}}, "spec: Forbidden")
        more = {"spec": {"containers": [container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])]}}
        at = f"{PODS}/{pod}"
        yield Call(
            f"F5 {pod} with a literal later", "PATCH", at, more, "spec: Forbidden", content_type=STRATEGIC
        )
