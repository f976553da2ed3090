"""The pods of a workload: what the user wrote, under what we set.

`read` checks the user's template and says what it asks for; `fill` completes it once a node is chosen.
Raises `InvalidTemplate` with a sentence that names the field, what it says and what to do.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import PodSpec
from gpu_orchestrator.api.wire import Json, Wire
from gpu_orchestrator.apps.operator import conflicts, job
from gpu_orchestrator.apps.operator.conflicts import MAIN, InvalidTemplate
from gpu_orchestrator.apps.operator.job import PodTemplate

IMAGE = "busybox:1.37"
PLACEHOLDER: Json = {
    "name": MAIN,
    "image": IMAGE,
    "command": ["sh", "-c", 'echo "model $MODEL_NAME got $GPU_COUNT GPU(s) on $(hostname)"'],
}
QUANTITIES = ("requests", "limits", "overhead")


class Variable(Wire, frozen=True, gc=False):
    name: str


class MainContainer(Wire, frozen=True, gc=False):
    """Of the main container, what is not of interest where it only asks for room."""

    env: list[Variable] = []  # noqa: RUF012 - msgspec copies it


@dataclass(frozen=True, slots=True)
class Template:
    """`pod` is what asks for room; `resource` the GPU resource that the user named, if any."""

    plain: Json
    pod: PodSpec
    resource: str = ""


def read(workload: GPUWorkload) -> Template:
    plain = _with_containers(msgspec.to_builtins(workload.spec.template) if workload.spec.template else {})
    pod = _typed(plain).spec
    conflicts.check(workload, pod, restart_policy=plain["spec"].get("restartPolicy", "Never"))
    return Template(plain, pod, conflicts.gpu_resource(workload, pod))


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
    plain: Json = _cleaned(template)
    spec = plain["spec"] = plain.get("spec") or {}
    spec["containers"] = spec.get("containers") or [deepcopy(PLACEHOLDER)]
    return plain


def _cleaned(value: Any, *, amounts: bool = False) -> Any:
    """As the API server reads it: nothing said is nothing (null), and a quantity may be written as a number
    (`nvidia.com/gpu: 2`)."""
    match value:
        case dict():
            said = {name: each for name, each in value.items() if each is not None}
            return {name: _cleaned(each, amounts=name in QUANTITIES) for name, each in said.items()} | (
                {name: str(each) for name, each in said.items() if _is_number(each)} if amounts else {}
            )
        case list():
            return [_cleaned(each) for each in value]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _typed(plain: Json) -> PodTemplate:
    try:
        found = msgspec.convert(plain, PodTemplate)
        msgspec.convert(main_of(plain["spec"]), MainContainer)
        return found
    except msgspec.ValidationError as error:
        where = str(error).replace("`$", "`spec.template")
        raise InvalidTemplate(f"spec.template is no pod template: {where}") from error
