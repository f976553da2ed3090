"""Checks of a user's pod template: invalid fields, contradictions to the workload, and the GPUs it names.

Called by `template_reading`. Each error names the field, its value and what to do.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from gpu_orchestrator.api import names, nesting, pod_limits, podtemplate, quantity, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import PodTemplate
from gpu_orchestrator.api.kubernetes import PodSpec
from gpu_orchestrator.api.pod import Container
from gpu_orchestrator.core.errors import InvalidRequest

RESTARTS = ("Never", "OnFailure")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class InvalidTemplate(ValueError):
    """The pod template is invalid, or contradicts the rest of the spec."""


def check_depth(workload: GPUWorkload) -> None:
    """Refuse a template that a copy or the encoder could not handle. Call it before anything that recurses
    into the template."""
    if workload.spec.template and nesting.is_value_too_deep(workload.spec.template.spec):
        _refuse("spec", f"is nested deeper than {nesting.DEEPEST} levels", "write it flatter")


def check(workload: GPUWorkload, pod: PodSpec, *, restart_policy: Any) -> None:
    if pod.node_name:
        _refuse("nodeName", f"is {pod.node_name!r}", "leave it out; the operator chooses the node")
    if restart_policy not in RESTARTS:
        _refuse("restartPolicy", f"is {restart_policy!r}", "a Job needs Never or OnFailure")
    if pod.priority_class_name not in ("", names.PRIORITY_CLASSES[workload.spec.priority]):
        _refuse("priorityClassName", f"is {pod.priority_class_name!r}", "set spec.priority instead")
    if found := pod_limits.excess(pod):
        raise InvalidTemplate(f"spec.template: {found}")
    _check_names(pod)
    _check_volumes(pod)
    _check_affinity(pod)
    _check_quantities(pod, workload.spec.gpu_count)


def check_plain(template: PodTemplate) -> None:
    scheduler = template.spec.scheduler_name
    if scheduler not in names.KUBE_SCHEDULER:
        _refuse("schedulerName", f"is {scheduler!r}", "leave it out, or ask for devices by spec.claim")
    for name in template.metadata.annotations:
        if name.startswith(f"{names.SCHEDULING_GROUP}/"):
            advice = "leave it out, or ask for devices by spec.claim"
            _refuse("metadata.annotations", f"has {name}, which only the gpu-scheduler reads", advice)
    for container in (*template.spec.init_containers, *template.spec.containers):
        if any(names.MILLIGPU in each for each in (container.resources.limits, container.resources.requests)):
            advice = "leave it out; only pods with a claim count for it"
            _refuse(f"container {container.name!r}", f"asks for {names.MILLIGPU}", advice)


def check_claimed(template: PodTemplate) -> None:
    """Reject fields that the operator itself sets for the gpu-scheduler."""
    scheduler, annotations = template.spec.scheduler_name, template.metadata.annotations
    if scheduler not in ("", names.SCHEDULER):
        _refuse("schedulerName", f"is {scheduler!r}", "leave it out; the gpu-scheduler serves claims")
    for name in (
        *names.ASKING_ANNOTATIONS,
        names.STRATEGY,
        *names.GANG_ANNOTATIONS,
        *names.ANSWERING_ANNOTATIONS,
    ):
        if name in annotations:
            _refuse("metadata.annotations", f"has {name}", "leave it out; the operator sets it from the spec")
    for container in (*template.spec.init_containers, *template.spec.containers):
        for resource, _ in _gpus_of(container):
            advice = "leave it out; a device plugin would assign other devices than the claim"
            _refuse(f"container {container.name!r}", f"asks for {resource}", advice)


def _check_names(pod: PodSpec) -> None:
    counted = Counter(container.name for container in (*pod.init_containers, *pod.containers))
    for name, times in counted.items():
        if times > 1:
            _refuse("containers", f"has two containers called {name!r}", "give each its own name")


def claim_names(pod: PodSpec) -> list[str]:
    """Return the names of the PersistentVolumeClaims that the pod mounts."""
    return [each.persistent_volume_claim.claim_name for each in pod.volumes if each.persistent_volume_claim]


def _check_volumes(pod: PodSpec) -> None:
    for name in claim_names(pod):
        if not names.is_object_name(name):
            advice = "name a PersistentVolumeClaim of the workload's namespace"
            _refuse("volumes", f"has the claimName {name!r}", advice)


def _check_affinity(pod: PodSpec) -> None:
    required = pod.affinity.node_affinity.required
    for term in required.node_selector_terms if required else ():
        for each in (*term.match_expressions, *term.match_fields):
            if each.operator not in OPERATORS:
                _refuse(
                    "node affinity", f"has the operator {each.operator!r}", f"known: {', '.join(OPERATORS)}"
                )


def _check_quantities(pod: PodSpec, gpus: int) -> None:
    try:
        translate.shape(pod, gpus)
    except quantity.BadQuantity as error:
        raise InvalidTemplate(f"spec.template has an invalid quantity: {error}") from error
    except InvalidRequest as error:
        raise InvalidTemplate(f"spec.template requests too much: {error}") from error


def gpu_resource(workload: GPUWorkload, pod: PodSpec) -> str:
    """Return the GPU resource that the user named, if any. Only the main container may request GPUs, and only
    `spec.gpuCount` of them."""
    main = pod.containers[podtemplate.main_index([each.name for each in pod.containers])]
    wanted, named = workload.spec.gpu_count, ""
    for container in (*pod.init_containers, *pod.containers):
        for resource, text in _gpus_of(container):
            where = f"container {container.name!r}"
            if container is not main:
                _refuse(where, f"asks for {resource}", "only the main container may do that")
            if quantity.whole(text) != wanted or named not in ("", resource):
                asked = f"asks for {text} {resource}, spec.gpuCount is {wanted}"
                _refuse(where, asked, "leave it out; the operator sets it")
            named = resource
    return named


def _gpus_of(container: Container) -> Iterator[tuple[str, str]]:
    for amounts in (container.resources.limits, container.resources.requests):
        yield from ((name, text) for name, text in amounts.items() if name in names.VENDOR_OF)


def _refuse(what: str, found: str, advice: str) -> NoReturn:
    raise InvalidTemplate(f"spec.template: {what} {found}; {advice}")
