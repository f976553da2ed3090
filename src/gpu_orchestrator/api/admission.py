"""What the webhook makes of a pod on its way into the API server: pure functions of JSON.

A claimed pod gets all that the gpu-scheduler and the container runtime need of it; in a namespace whose
administrator hides GPUs, every other pod sees none. The same is done without a webhook by a
MutatingAdmissionPolicy, and the policies refuse what was not filled in. The creator of a pod may write any
JSON: what is not of the right shape stays as it is, and nothing here raises.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_orchestrator.api import claims, deviceenv, names
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.wire import Json

CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
EPHEMERAL = ("ephemeralContainers",)
COUNTED = ("initContainers", "containers")
"""Lists of containers that can request resources; ephemeral containers cannot."""

Change = Callable[[Json], Json]


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """The pod asks for a number of whole GPUs."""

    count: int


@dataclass(frozen=True, slots=True)
class NamedClaim:
    """The pod names a GpuClaim of its namespace, or one that serves as template."""

    name: str
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The pod cannot be admitted as it is; `why` is the message that its creator reads."""

    why: str


def asked(pod: Json) -> WholeGpus | NamedClaim | Denied | None:
    """Return what a pod claims; None if it is not claimed."""
    annotations = _annotations(pod)
    ways = [name for name in names.ASKING_ANNOTATIONS if name in annotations]
    if not ways:
        return None
    if len(ways) > 1:
        return Denied(f"the pod asks for GPUs in {len(ways)} ways ({', '.join(ways)}); keep one of them")
    (way,) = ways
    text = annotations[way]
    if way == names.GPUS:
        return _whole_gpus(
            text if isinstance(text, str) else "", least=0 if annotations.get(names.GANG) else 1
        )
    if not isinstance(text, str) or not names.is_object_name(text):
        shown = repr(claims.shortened(text)) if isinstance(text, str) else "not a text"
        return Denied(f"{way} is {shown}; write the name of a GpuClaim in the pod's namespace")
    return NamedClaim(text, is_template=way == names.CLAIM_TEMPLATE)


def _whole_gpus(text: str, *, least: int) -> WholeGpus | Denied:
    try:
        return WholeGpus(claims.read_gpus(text, least=least))
    except BadGpuRequest as error:
        return Denied(str(error))


def is_claimed(pod: Json) -> bool:
    """Return True if the pod asks for GPUs by an annotation. Nothing else makes a pod claimed."""
    return any(name in _annotations(pod) for name in names.ASKING_ANNOTATIONS)


def too_large(pod: Json, most: int) -> str:
    """Return that the pod has more containers than that, in a sentence; empty if it has not. To fill in each
    of a million would take the webhook's memory, and the policies refuse so large a pod."""
    spec = pod.get("spec")
    found = sum(len(_list(spec.get(kind))) for kind in CONTAINERS) if isinstance(spec, dict) else 0
    return f"the pod has {found} containers, and at most {most} are looked at; use several pods" * (
        found > most
    )


def filled(pod: Json, milligpu: int) -> Json:
    """Return a new pod that is claimed with all that it needs. `milligpu` is what it counts for; the first
    container requests it, because the sum over all containers is what Kubernetes counts. Autoscalers leave it
    where it is, unless its author has said something else."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return pod
    made = _in_containers(spec, CONTAINERS, deviceenv.confined)
    made = _in_containers(made, COUNTED, _uncounted)
    made = _with_first_counted(made, str(milligpu))
    if made.get("schedulerName") in (None, *names.KUBE_SCHEDULER):
        made = {**made, "schedulerName": names.SCHEDULER}
    return {**_left_running(pod), "spec": _tolerant(made)}


def filled_ephemeral(pod: Json, before: Json) -> Json:
    """Return a claimed pod with what its new ephemeral containers need. Nothing else of a pod can be changed
    after its creation, neither can the ephemeral containers that it had `before`."""
    return _with_new_ephemeral(pod, before, deviceenv.confined)


def hidden(pod: Json) -> Json:
    """Return a new pod so that none of its containers sees a GPU, unless the pod is claimed."""
    spec = pod.get("spec")
    if is_claimed(pod) or not isinstance(spec, dict):
        return pod
    return {**pod, "spec": _in_containers(spec, CONTAINERS, deviceenv.blinded)}


def hidden_ephemeral(pod: Json, before: Json) -> Json:
    """Return a pod so that none of its new ephemeral containers sees a GPU, unless the pod is claimed."""
    return pod if is_claimed(pod) else _with_new_ephemeral(pod, before, deviceenv.blinded)


def _with_new_ephemeral(pod: Json, before: Json, change: Change) -> Json:
    spec, old = pod.get("spec"), before.get("spec")
    if not isinstance(spec, dict):
        return pod
    had = _list(old.get(EPHEMERAL[0])) if isinstance(old, dict) else []
    known = {str(each.get("name")) for each in had if isinstance(each, dict)}

    def changed(container: Json) -> Json:
        return container if str(container.get("name")) in known else change(container)

    return {**pod, "spec": _in_containers(spec, EPHEMERAL, changed)}


def _in_containers(spec: Json, kinds: tuple[str, ...], change: Change) -> Json:
    """Return the spec with each container of these lists changed."""
    found = {kind: each for kind in kinds if (each := _list(spec.get(kind)))}
    return spec | {
        kind: [change(each) if isinstance(each, dict) else each for each in containers]
        for kind, containers in found.items()
    }


def _uncounted(container: Json) -> Json:
    """Return the container without a request for our resource."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return container
    kept = {
        kind: {name: amount for name, amount in amounts.items() if name != names.MILLIGPU}
        for kind in ("requests", "limits")
        if isinstance(amounts := resources.get(kind), dict) and names.MILLIGPU in amounts
    }
    return {**container, "resources": {**resources, **kept}} if kept else container


def _with_first_counted(spec: Json, amount: str) -> Json:
    first, *others = _list(spec.get("containers")) or [None]
    if not isinstance(first, dict):
        return spec
    resources = first.get("resources")
    if not isinstance(resources, dict | None):
        return spec
    counted = dict(resources or {})
    for kind in ("requests", "limits"):
        if isinstance(amounts := counted.get(kind), dict | None):
            counted[kind] = {**(amounts or {}), names.MILLIGPU: amount}
    return {**spec, "containers": [{**first, "resources": counted}, *others]}


def _left_running(pod: Json) -> Json:
    """Return the pod with annotations that keep it where it is, unless it has some of these names. To the
    cluster-autoscaler, which counts a cloud's own GPU resource alone, a node with claimed pods is unused."""
    found = _annotations(pod)
    if not found or found.keys() >= names.KEEP_RUNNING.keys():
        return pod
    return {**pod, "metadata": {**pod["metadata"], "annotations": {**names.KEEP_RUNNING, **found}}}


def _tolerant(spec: Json) -> Json:
    """Return the spec with tolerations for the taints that GPU nodes commonly have: a resource's name."""
    found = spec.get("tolerations")
    if not isinstance(found, list | None):
        return spec
    found = found or []
    ours: list[Json] = [{"key": name, "operator": "Exists"} for name in names.GPU_RESOURCES]
    missing = [each for each in ours if each not in found]
    return {**spec, "tolerations": [*found, *missing]} if missing else spec


def _annotations(pod: Json) -> Json:
    metadata = pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    return annotations if isinstance(annotations, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
