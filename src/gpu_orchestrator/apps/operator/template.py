"""The pods of a workload: what the user wrote, under what we set.

`read` checks the user's template and says what it asks for; `fill` completes it once a node is chosen.
Raises `InvalidTemplate` with a sentence that names the field, what it says and what to do.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_orchestrator.api import names, quantity, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import PodSpec
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator import job
from gpu_orchestrator.apps.operator.job import PodTemplate

MAIN = "main"
IMAGE = "busybox:1.37"
PLACEHOLDER: Json = {
    "name": MAIN,
    "image": IMAGE,
    "command": ["sh", "-c", 'echo "model $MODEL_NAME got $GPU_COUNT GPU(s) on $(hostname)"'],
}
SCHEDULERS = ("", "default-scheduler")


class InvalidTemplate(ValueError):
    """The pod template cannot be meant, or contradicts the rest of the spec."""


@dataclass(frozen=True, slots=True)
class Template:
    """`pod` is what asks for room; `resource` the GPU resource that the user named, if any."""

    plain: Json
    pod: PodSpec
    resource: str = ""


def read(workload: GPUWorkload) -> Template:
    plain = _with_containers(msgspec.to_builtins(workload.spec.template) if workload.spec.template else {})
    pod = _typed(plain).spec
    _check(workload, plain["spec"], pod)
    return Template(plain, pod, _gpu_resource_of(workload, pod))


def fill(workload: GPUWorkload, template: Template, *, node: str, resource: str) -> Json:
    """The pod template for this node, whose GPUs are given out under this resource name."""
    plain = deepcopy(template.plain)
    metadata, spec = plain.setdefault("metadata", {}), plain["spec"]
    metadata["labels"] = {**(metadata.get("labels") or {}), **job.labels_of(workload)}
    spec.setdefault("restartPolicy", "Never")
    spec["priorityClassName"] = names.PRIORITY_CLASSES[workload.spec.priority]
    spec["affinity"] = _pinned(spec.get("affinity") or {}, node)
    spec["tolerations"] = [*(spec.get("tolerations") or []), {"key": resource, "operator": "Exists"}]
    _fill_main(main_of(spec), workload, resource)
    return plain


def _fill_main(main: Json, workload: GPUWorkload, resource: str) -> None:
    count = str(workload.spec.gpu_count)
    resources = main.setdefault("resources", {})
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), resource: count}
    ours = {names.MODEL_NAME_ENV: workload.spec.model_name, names.GPU_COUNT_ENV: count}
    kept = [each for each in main.get("env") or [] if each.get("name") not in ours]
    # Ours go first, so that the user's own variables can refer to them.
    main["env"] = [*({"name": name, "value": value} for name, value in ours.items()), *kept]


def main_of(spec: Json) -> Json:
    """The container that gets the GPUs: the one called `main`, else the first."""
    containers: list[Json] = spec["containers"]
    return next((each for each in containers if each.get("name") == MAIN), containers[0])


def _pinned(affinity: Json, node: str) -> Json:
    """Required affinity to one node, within whatever terms the user gave: terms are alternatives, so each
    must say it."""
    here = {"key": job.NODE_FIELD, "operator": "In", "values": [node]}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [
        {**term, "matchFields": [here, *(term.get("matchFields") or [])]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    pinned = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": {**node_affinity, **pinned}}


def _with_containers(template: Json) -> Json:
    plain: Json = _quantities_as_text(template)
    spec = plain["spec"] = plain.get("spec") or {}
    spec["containers"] = spec.get("containers") or [deepcopy(PLACEHOLDER)]
    return plain


def _quantities_as_text(value: Any, *, amounts: bool = False) -> Any:
    """YAML reads `nvidia.com/gpu: 2` as a number; quantities are text for us."""
    match value:
        case dict():
            return {
                name: _quantities_as_text(each, amounts=name in ("requests", "limits", "overhead"))
                if isinstance(each, (dict, list)) or not amounts
                else str(each)
                for name, each in value.items()
            }
        case list():
            return [_quantities_as_text(each) for each in value]
    return value


def _typed(plain: Json) -> PodTemplate:
    try:
        return msgspec.convert(plain, PodTemplate)
    except msgspec.ValidationError as error:
        where = str(error).replace("`$", "`spec.template")
        raise InvalidTemplate(f"spec.template is no pod template: {where}") from error


def _check(workload: GPUWorkload, plain: Json, pod: PodSpec) -> None:
    repeated = [name for name, times in Counter(c.name for c in pod.containers).items() if times > 1]
    wanted = names.PRIORITY_CLASSES[workload.spec.priority]
    if repeated:
        _refuse("containers", f"has two containers called {repeated[0]!r}", "give each its own name")
    if pod.node_name:
        _refuse("nodeName", f"is {pod.node_name!r}", "leave it out; the operator chooses the node")
    if pod.scheduler_name not in SCHEDULERS:
        _refuse(
            "schedulerName", f"is {pod.scheduler_name!r}", "leave it out, or ask for devices by spec.claim"
        )
    if plain.get("restartPolicy", "Never") not in ("Never", "OnFailure"):
        _refuse("restartPolicy", f"is {plain['restartPolicy']!r}", "a Job needs Never or OnFailure")
    if pod.priority_class_name not in ("", wanted):
        _refuse("priorityClassName", f"is {pod.priority_class_name!r}", "set spec.priority instead")
    try:
        translate.asked(pod)
    except quantity.BadQuantity as error:
        raise InvalidTemplate(f"spec.template asks for what cannot be read: {error}") from error


def _gpu_resource_of(workload: GPUWorkload, pod: PodSpec) -> str:
    """The GPU resource that the user named. Only the main container may ask for GPUs, and only for as many as
    the workload."""
    main = next((each for each in pod.containers if each.name == MAIN), pod.containers[0])
    named = ""
    for container in (*pod.init_containers, *pod.containers):
        for resource, text in {**container.resources.limits, **container.resources.requests}.items():
            if resource not in names.VENDOR_OF:
                continue
            if container is not main:
                _refuse(
                    f"container {container.name!r}", f"asks for {resource}", "only the main container may"
                )
            if quantity.whole(text) != workload.spec.gpu_count or named not in ("", resource):
                _refuse(
                    f"container {container.name!r}",
                    f"asks for {text} {resource}, spec.gpuCount is {workload.spec.gpu_count}",
                    "leave it out; the operator sets it",
                )
            named = resource
    return named


def _refuse(what: str, found: str, advice: str) -> None:
    raise InvalidTemplate(f"spec.template: {what} {found}; {advice}")
