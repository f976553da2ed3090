"""The pod template of a workload: what the user wrote, completed by the operator.

`read` checks the user's template, or raises `InvalidTemplate`. `fill` completes it for a chosen node,
`entrusted` for the gpu-scheduler to choose. Called by `place` and `claimed`.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_orchestrator.api import deviceenv, names, podtemplate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import NODE_FIELD, PodTemplate
from gpu_orchestrator.api.kubernetes import PodSpec
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator.jobs import inherited, job, template_checks
from gpu_orchestrator.apps.operator.jobs.template_checks import InvalidTemplate

IMAGE = "busybox:1.37"
PLACEHOLDER: Json = {
    "name": podtemplate.MAIN,
    "image": IMAGE,
    "command": ["sh", "-c", 'echo "model $MODEL_NAME got $GPU_COUNT GPU(s) on $(hostname)"'],
}
AMOUNTS = ("requests", "limits")
QUANTITIES = (*AMOUNTS, "overhead")
CONTAINERS = ("initContainers", "containers")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Template:
    """`plain` is the template as JSON, `pod` its typed spec, `resource` the GPU resource that the user named,
    if any."""

    plain: Json
    pod: PodSpec
    resource: str = ""


def read(workload: GPUWorkload, *, claimed: bool = False) -> Template:
    plain = _with_containers(msgspec.to_builtins(workload.spec.template) if workload.spec.template else {})
    typed = _typed(plain)
    template_checks.check(workload, typed.spec, restart_policy=plain["spec"].get("restartPolicy", "Never"))
    if claimed:
        template_checks.check_claimed(typed)
        return Template(plain, typed.spec)
    template_checks.check_plain(typed)
    return Template(plain, typed.spec, template_checks.gpu_resource(workload, typed.spec))


def fill(workload: GPUWorkload, template: Template, *, nodes: Sequence[str], resource: str) -> Json:
    """Return the pod template for one of these nodes, best first, whose device plugins offer their GPUs as
    `resource`."""
    plain = _completed(workload, template, tolerated=(resource,))
    spec = plain["spec"]
    spec["affinity"] = _pinned(spec.get("affinity") or {}, nodes)
    _request(_main_of(spec), resource, workload.spec.gpu_count)
    return plain


def entrusted(workload: GPUWorkload, template: Template, asks: dict[str, str], *, milligpu: int) -> Json:
    """Return the pod template for the gpu-scheduler, with its request in the annotations `asks`. It is
    complete without the webhook, as the policies demand. Every container gets its device IDs in the
    environment; without them it would see all GPUs of the node. `milligpu` is what Kubernetes counts of it.
    An autoscaler that finds room for the pod elsewhere would move it, and it would begin again: forbid
    that."""
    plain = _completed(workload, template, tolerated=names.GPU_RESOURCES)
    metadata, spec = plain["metadata"], plain["spec"]
    metadata["annotations"] = {**names.KEEP_RUNNING, **(metadata.get("annotations") or {}), **asks}
    spec["schedulerName"] = names.SCHEDULER
    if workload.spec.max_runtime_seconds is not None:
        # On the pod it counts from its start on a node. On the Job it would count the wait for a node, too.
        spec["activeDeadlineSeconds"] = workload.spec.max_runtime_seconds
    for kind in CONTAINERS:
        if kind in spec:
            spec[kind] = [deviceenv.confined(_uncounted(each)) for each in spec[kind]]
    _request(spec["containers"][0], names.MILLIGPU, milligpu)
    return plain


def _uncounted(container: Json) -> Json:
    """Return the container without a request for what Kubernetes counts of the pod: only the first one of a
    pod has it."""
    resources = container.get("resources") or {}
    if not any(names.MILLIGPU in (resources.get(kind) or {}) for kind in AMOUNTS):
        return container
    kept = {
        kind: {name: amount for name, amount in resources[kind].items() if name != names.MILLIGPU}
        for kind in AMOUNTS
        if resources.get(kind)
    }
    return {**container, "resources": {**resources, **kept}}


def _request(container: Json, resource: str, amount: int) -> None:
    """Let the container request this much, and have no more. Of an extended resource, both must be equal."""
    resources = container.setdefault("resources", {})
    for kind in AMOUNTS:
        resources[kind] = {**(resources.get(kind) or {}), resource: str(amount)}


def _completed(workload: GPUWorkload, template: Template, *, tolerated: tuple[str, ...]) -> Json:
    """Set what every pod gets. A node may be tainted with the name of its GPU resource, so tolerate that."""
    plain = deepcopy(template.plain)
    metadata, spec = plain.setdefault("metadata", {}), plain["spec"]
    inherits = inherited.pod_labels(workload.metadata.labels)
    metadata["labels"] = {**inherits, **(metadata.get("labels") or {}), **job.labels_of(workload)}
    spec.setdefault("restartPolicy", "Never")
    spec["priorityClassName"] = names.PRIORITY_CLASSES[workload.spec.priority]
    given = spec.get("tolerations") or []
    taints = [{"key": resource, "operator": "Exists"} for resource in tolerated]
    spec["tolerations"] = [*given, *(each for each in taints if each not in given)]
    _set_env(_main_of(spec), workload)
    return plain


def _set_env(main: Json, workload: GPUWorkload) -> None:
    ours = {
        names.MODEL_NAME_ENV: workload.spec.model_name,
        names.GPU_COUNT_ENV: str(workload.spec.gpu_count),
    }
    kept = [each for each in main.get("env") or [] if each.get("name") not in ours]
    # The operator's variables go first, so that the user's own can refer to them.
    main["env"] = [*({"name": name, "value": value} for name, value in ours.items()), *kept]


def _main_of(spec: Json) -> Json:
    containers: list[Json] = spec["containers"]
    return containers[podtemplate.main_index([each.get("name") for each in containers])]


def _pinned(affinity: Json, nodes: Sequence[str]) -> Json:
    """Require one of these nodes in addition to the user's terms. Terms are alternatives, so each must
    contain a node; a condition on the name takes only one. Of several nodes prefer the first."""
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(REQUIRED) or {}
    terms = [
        {**term, "matchFields": [_is_node(node), *(term.get("matchFields") or [])]}
        for node in nodes
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    pinned: Json = {REQUIRED: {"nodeSelectorTerms": terms}}
    if len(nodes) > 1:
        best = {"weight": 100, "preference": {"matchFields": [_is_node(nodes[0])]}}
        pinned[PREFERRED] = [*(node_affinity.get(PREFERRED) or []), best]
    return {**affinity, "nodeAffinity": {**node_affinity, **pinned}}


def _is_node(name: str) -> Json:
    return {"key": NODE_FIELD, "operator": "In", "values": [name]}


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
