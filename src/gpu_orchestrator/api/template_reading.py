"""The pod template of a GPUWorkload as the user wrote it: read, checked, and with a container if it has none.

Called by the operator before it makes a Job, and by the webhook before the workload is stored. `read` raises
`InvalidTemplate`, which says what to write instead.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_orchestrator.api import podtemplate, template_checks
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import PodTemplate
from gpu_orchestrator.api.kubernetes import PodSpec
from gpu_orchestrator.api.template_checks import InvalidTemplate
from gpu_orchestrator.api.wire import Json

IMAGE = "busybox:1.37"
PLACEHOLDER: Json = {
    "name": podtemplate.MAIN,
    "image": IMAGE,
    "command": ["sh", "-c", 'echo "model $MODEL_NAME got $GPU_COUNT GPU(s) on $(hostname)"'],
}
QUANTITIES = ("requests", "limits", "overhead")
CONTAINERS = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class Template:
    """`plain` is the template as JSON, `pod` its typed spec, `resource` the GPU resource that the user named,
    if any."""

    plain: Json
    pod: PodSpec
    resource: str = ""


def read(workload: GPUWorkload, *, claimed: bool = False) -> Template:
    plain, typed = _read(workload)
    if claimed:
        template_checks.check_claimed(typed)
        return Template(plain, typed.spec)
    template_checks.check_plain(typed)
    return Template(plain, typed.spec, template_checks.gpu_resource(workload, typed.spec))


def check_either(workload: GPUWorkload) -> None:
    """Refuse what is invalid whether the operator chooses the node or the gpu-scheduler the devices."""
    _read(workload)


def _read(workload: GPUWorkload) -> tuple[Json, PodTemplate]:
    plain = _with_containers(msgspec.to_builtins(workload.spec.template) if workload.spec.template else {})
    typed = _typed(plain)
    template_checks.check(workload, typed.spec, restart_policy=plain["spec"].get("restartPolicy", "Never"))
    return plain, typed


def _with_containers(template: Json) -> Json:
    plain: Json = _cleaned(template)
    spec = plain["spec"] = plain.get("spec") or {}
    spec["containers"] = spec.get("containers") or [deepcopy(PLACEHOLDER)]
    return plain


def _cleaned(value: Any, *, amounts: bool = False) -> Any:
    """Read the value as the API server does: null is the same as absent, and a quantity may be written as a
    number (`nvidia.com/gpu: 2`)."""
    match value:
        case dict():
            present = {name: each for name, each in value.items() if each is not None}
            return {name: _cleaned(each, amounts=name in QUANTITIES) for name, each in present.items()} | (
                {name: str(each) for name, each in present.items() if _is_number(each)} if amounts else {}
            )
        case list():
            return [_cleaned(each) for each in value]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _typed(plain: Json) -> PodTemplate:
    try:
        found = msgspec.convert(plain, PodTemplate)
        for kind in CONTAINERS:
            msgspec.convert(plain["spec"].get(kind, []), list[podtemplate.Environment])
        return found
    except msgspec.ValidationError as error:
        where = str(error).replace("`$", "`spec.template")
        raise InvalidTemplate(f"spec.template is not a valid pod template: {where}") from error
