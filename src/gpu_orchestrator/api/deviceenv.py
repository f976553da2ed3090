"""How a container learns its devices: environment variables filled from annotations that the scheduler writes
as it binds the pod. A pod's environment cannot change after creation, but its annotations can."""

from gpu_orchestrator.api import names
from gpu_orchestrator.api.pod import Container, PodSpec
from gpu_orchestrator.api.wire import Json

VOID = "void"
"""The value of NVIDIA_VISIBLE_DEVICES with which the NVIDIA container runtime gives a container no GPU."""


def confined(container: Json) -> Json:
    """Return the container with our device variables and no others of these names. They go first, so that the
    user's own variables can refer to them."""
    return with_first(container, [variable(*each) for each in names.DEVICE_ENV.items()])


def blinded(container: Json) -> Json:
    """Return the container with NVIDIA_VISIBLE_DEVICES=void, and no other variable of that name: images for
    CUDA say `all`, and such a container would see every GPU of its node."""
    return with_first(container, [{"name": names.NVIDIA_DEVICES_ENV, "value": VOID}])


def with_first(container: Json, ours: list[Json]) -> Json:
    """Return the container with these variables first, each in place of all others of its name. What is not
    of the shape of a variable stays: the API server refuses it."""
    found = container.get("env")
    if not isinstance(found, list | None):
        return container
    replaced = [each["name"] for each in ours]
    kept = [each for each in found or [] if not isinstance(each, dict) or each.get("name") not in replaced]
    return {**container, "env": [*ours, *kept]}


def unconfined(spec: PodSpec) -> str:
    """Return which containers do not take their devices from our annotations, in a sentence; empty if all do.
    Images for CUDA say NVIDIA_VISIBLE_DEVICES=all: such a container sees every GPU of its node."""
    containers = (*spec.init_containers, *spec.containers)
    missing = {each.name: lacks for each in containers if (lacks := _missing(each))}
    if not missing:
        return ""
    name, lacks = next(iter(missing.items()))
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"container {name}{others} may see all GPUs of the node: {', '.join(lacks)} must come from the "
        "annotations by fieldRef; see examples/claimed-pod.yaml"
    )


def _missing(container: Container) -> list[str]:
    given = {each.name: each.value_from.field_ref.field_path for each in container.env}
    return [name for name, annotation in names.DEVICE_ENV.items() if given.get(name) != _path(annotation)]


def variable(name: str, annotation: str) -> Json:
    """Return a variable that an annotation of the pod fills."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": _path(annotation)}}}


def _path(annotation: str) -> str:
    return f"metadata.annotations['{annotation}']"
