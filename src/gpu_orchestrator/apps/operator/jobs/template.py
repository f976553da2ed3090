"""The pod template of a workload: what the user wrote, completed by the operator.

`read` checks the user's template, or raises `InvalidTemplate`; it is in `api/`, because the webhook calls it,
too. `fill` completes it for a chosen node, `entrusted` for the gpu-scheduler to choose. Called by `place` and
`claimed`.
"""

from collections.abc import Sequence
from copy import deepcopy

from gpu_orchestrator.api import admission, names, podtemplate, template_reading
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import NODE_FIELD
from gpu_orchestrator.api.template_reading import Template
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator.jobs import inherited, job

IMAGE = template_reading.IMAGE
read = template_reading.read
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def fill(workload: GPUWorkload, template: Template, *, nodes: Sequence[str], resource: str) -> Json:
    """Return the pod template for one of these nodes, best first, whose device plugins offer their GPUs as
    `resource`."""
    plain = _completed(workload, template, tolerated=(resource,))
    spec = plain["spec"]
    spec["affinity"] = _pinned(spec.get("affinity") or {}, nodes)
    _request(_main_of(spec), resource, workload.spec.gpu_count)
    return plain


def entrusted(workload: GPUWorkload, template: Template, asks: dict[str, str], *, milligpu: int) -> Json:
    """Return the pod template for the gpu-scheduler, with its request in the annotations `asks`. It is filled
    in as the webhook would do it, so that the policies admit its pods while no webhook answers. `milligpu`
    is what Kubernetes counts of it."""
    plain = _completed(workload, template, tolerated=())
    metadata, spec = plain["metadata"], plain["spec"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **asks}
    spec["schedulerName"] = names.SCHEDULER
    if workload.spec.max_runtime_seconds is not None:
        # On the pod it counts from its start on a node. On the Job it would count the wait for a node, too.
        spec["activeDeadlineSeconds"] = workload.spec.max_runtime_seconds
    return admission.filled(plain, milligpu)


def _request(container: Json, resource: str, amount: int) -> None:
    """Let the container request this much, and have no more. Of an extended resource, both must be equal."""
    resources = container.setdefault("resources", {})
    for kind in ("requests", "limits"):
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
