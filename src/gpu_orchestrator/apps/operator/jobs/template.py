"""The pod template of a workload: what the user wrote, completed by the operator.

`read` checks the user's template, or raises `InvalidTemplate`; it is in `api/`, because the webhook calls it,
too. `fill` completes it for a chosen node, `entrusted` for the gpu-scheduler to choose. Called by `place` and
`claimed`.
"""

from collections.abc import Sequence
from copy import deepcopy

from gpu_orchestrator.api import deviceenv, names, podtemplate, template_reading
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import NODE_FIELD
from gpu_orchestrator.api.template_reading import Template
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator.jobs import inherited, job

CONTAINERS, IMAGE = template_reading.CONTAINERS, template_reading.IMAGE
read = template_reading.read
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def fill(workload: GPUWorkload, template: Template, *, nodes: Sequence[str], resource: str) -> Json:
    """Return the pod template for one of these nodes, best first, whose device plugins offer their GPUs as
    `resource`."""
    plain = _completed(workload, template, tolerated=(resource,))
    spec = plain["spec"]
    spec["affinity"] = _pinned(spec.get("affinity") or {}, nodes)
    resources = _main_of(spec).setdefault("resources", {})
    for kind in ("requests", "limits"):
        resources[kind] = {**(resources.get(kind) or {}), resource: str(workload.spec.gpu_count)}
    return plain


def entrusted(workload: GPUWorkload, template: Template, asks: dict[str, str]) -> Json:
    """Return the pod template for the gpu-scheduler, with its request in the annotations `asks`. Every
    container gets its device IDs in the environment; without them it would see all GPUs of the node. To an
    autoscaler its node seems idle, since the pod requests no GPU resource: tell it to keep the pod."""
    plain = _completed(workload, template, tolerated=names.GPU_RESOURCES)
    metadata, spec = plain["metadata"], plain["spec"]
    metadata["annotations"] = {**names.KEEP_RUNNING, **(metadata.get("annotations") or {}), **asks}
    spec["schedulerName"] = names.SCHEDULER
    if workload.spec.max_runtime_seconds is not None:
        # On the pod it counts from its start on a node. On the Job it would count the wait for a node, too.
        spec["activeDeadlineSeconds"] = workload.spec.max_runtime_seconds
    for kind in CONTAINERS:
        if kind in spec:
            spec[kind] = [deviceenv.confined(each) for each in spec[kind]]
    return plain


def _completed(workload: GPUWorkload, template: Template, *, tolerated: tuple[str, ...]) -> Json:
    """Set what every pod gets. A node may be tainted with the name of its GPU resource, so tolerate that."""
    plain = deepcopy(template.plain)
    metadata, spec = plain.setdefault("metadata", {}), plain["spec"]
    own, given = metadata.get("labels") or {}, inherited.pod_labels(workload.metadata.labels)
    metadata["labels"] = {**given, **own, **job.labels_of(workload)}
    spec.setdefault("restartPolicy", "Never")
    spec["priorityClassName"] = names.PRIORITY_CLASSES[workload.spec.priority]
    taints = [{"key": resource, "operator": "Exists"} for resource in tolerated]
    spec["tolerations"] = [*(spec.get("tolerations") or []), *taints]
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
