"""What each of our processes writes beside pods: leases, reports of nodes; and who may use which priority."""

from gpu_orchestrator.api import names, sharing
from gpu_orchestrator.api.admission_policies import cel
from gpu_orchestrator.api.admission_policies.policy import NAMESPACE_NAME, Policy, Resources, Validation

HIGH = names.PRIORITY_CLASSES["high"]
HIGH_VALUE = 100_000
"""Of that class. Any other class that ranks as high, such as system-node-critical, is placed as early."""
CONTROLLERS = "gpu-orchestrator-controllers"
"""PriorityClass of our own Deployments."""

_LABELLED = f"namespaceObject.metadata.?labels[?'{names.ALLOW_HIGH_PRIORITY}'].orValue('') == 'true'"
_LABEL = f"let an administrator label the namespace {names.ALLOW_HIGH_PRIORITY}=true, or use a lower priority"
_CLASS = "object.spec.?priorityClassName.orValue('')"
_IT = {"it": "object == null ? oldObject : object"}
_OURS = f"system:serviceaccount:{names.NAMESPACE}:"
_NODES = {"nodes": cel.CALLER_NODES}
_AGENT_LEASE = (
    f"{cel.IS_AGENT} && variables.nodes.exists(node, variables.it.metadata.name == "
    f"'{names.AGENT_LEASE_PREFIX}' + node)"
)

LEASES = Policy(
    "gpu-orchestrator-leases",
    "A Lease says who holds a device, who leads, and which agent lives. Each process writes its own.",
    (Resources(("leases",), ("CREATE", "UPDATE", "DELETE"), "coordination.k8s.io"),),
    (
        Validation(
            f"variables.isDevice ? {cel.IS_SCHEDULER} : "
            f"variables.it.metadata.name == '{names.OPERATOR_LEASE}' ? {cel.IS_OPERATOR} : "
            f"variables.it.metadata.name.endsWith('{names.SCHEDULER}.{names.SCHEDULING_GROUP}') ? "
            f"variables.it.metadata.name == variables.account + '.{names.SCHEDULING_GROUP}' : "
            f"variables.it.metadata.name.startsWith('{names.AGENT_LEASE_PREFIX}') ? ({_AGENT_LEASE}) : "
            f"variables.it.metadata.name.startsWith('{names.DEVICE_LEASE_PREFIX}') ? {cel.IS_SCHEDULER} : "
            "true",
            "'Lease ' + variables.it.metadata.name + ' says who holds a GPU, who leads or which agent "
            "lives; ' + "
            "request.userInfo.username + ' cannot write it: only the process can that it belongs to. Delete "
            "a pod to "
            "free its GPUs'",
            is_computed=True,
        ),
    ),
    conditions={
        "not-cleaning-up": f"!(request.operation == 'DELETE' && ({cel.IS_KUBERNETES}))",
        "not-an-administrator": f"!{cel.IS_ADMINISTRATOR}",
    },
    variables=_IT
    | _NODES
    | {
        "account": f"request.userInfo.username.replace('{_OURS}', '')",
        "isDevice": f"[object, oldObject].exists(each, each != null && "
        f"each.metadata.?labels[?'{names.MANAGED}'].orValue('') == 'true')",
    },
    namespaces={"matchLabels": {NAMESPACE_NAME: names.NAMESPACE}},
)

REPORTS = Policy(
    "gpu-orchestrator-reports",
    "What devices a node has is reported by the agent on that node: its token names the node.",
    (
        Resources(
            ("gpunodestatuses", "gpunodestatuses/status"),
            ("CREATE", "UPDATE", "DELETE"),
            names.SCHEDULING_GROUP,
        ),
    ),
    (
        Validation(
            f"{cel.IS_AGENT} && [object, oldObject].filter(each, each != null).all(each, "
            "each.metadata.name in variables.nodes && each.?spec.?nodeName.orValue(each.metadata.name) in "
            "variables.nodes)",
            "'GpuNodeStatus ' + variables.it.metadata.name + ' is written by the agent on that node alone; "
            "' + "
            "request.userInfo.username + ' is on ' + (variables.nodes.size() > 0 ? variables.nodes[0] : 'no "
            "node')",
            is_computed=True,
        ),
    ),
    conditions={
        "not-cleaning-up": f"!(request.operation == 'DELETE' && ({cel.IS_KUBERNETES}))",
        "not-an-administrator": f"!{cel.IS_ADMINISTRATOR}",
    },
    variables=_IT | _NODES,
    namespaces=None,
)

PRIORITY = Policy(
    "gpu-orchestrator-priority",
    "High priority is placed before the work of others, so an administrator says which namespaces have it.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            f"{_CLASS} == '{CONTROLLERS}' || {_LABELLED}",
            f"'priorityClassName ' + {_CLASS} + ' is placed before the pods of other namespaces; {_LABEL}'",
            is_computed=True,
        ),
        Validation(
            f"{_CLASS} != '{CONTROLLERS}' || request.namespace == '{names.NAMESPACE}'",
            f"priorityClassName {CONTROLLERS} is for the controllers in namespace {names.NAMESPACE}; use "
            f"{names.PRIORITY_CLASSES['normal']}",
        ),
    ),
    conditions={
        "high": f"{_CLASS} in {cel.text_list((HIGH, CONTROLLERS))} || "
        f"({cel.is_claimed('object')} && object.spec.?priority.orValue(0) >= {HIGH_VALUE})"
    },
)

WORKLOAD_PRIORITY = Policy(
    "gpu-orchestrator-workload-priority",
    "The same for a GPUWorkload, whose pods the operator makes: refused at once instead of waiting without "
    "a pod.",
    (Resources(("gpuworkloads",), ("CREATE", "UPDATE"), names.WARP_GROUP, names.WARP_VERSION),),
    (
        Validation(
            f"object.spec.?priority.orValue('') != 'high' || {_LABELLED} || "
            "(oldObject != null && oldObject.spec.?priority.orValue('') == 'high')",
            f"priority high is placed before the workloads of other namespaces; {_LABEL}",
        ),
    ),
)

_STATUS_OF_OTHERS = (
    "addresses",
    "conditions",
    "daemonEndpoints",
    "nodeInfo",
    "phase",
    "volumesAttached",
    "volumesInUse",
)
_COUNTED = ("capacity", "allocatable")


def _unchanged(part: str) -> str:
    return f"object.{part} == oldObject.{part}"


def _only_ours_changed(field: str) -> str:
    """Return a condition that is true if of these amounts nothing changed but our resource."""
    new, before = (f"dyn({each}).status.?{field}.orValue({{}})" for each in ("object", "oldObject"))
    same = f"{before}.all(key, key == '{names.MILLIGPU}' || (key in {new} && {new}[key] == {before}[key]))"
    return f"{same} && {new}.all(key, key == '{names.MILLIGPU}' || key in {before})"


def _taints_of_others(of: str) -> str:
    return f"{of}.spec.?taints.orValue([]).filter(taint, taint.key != '{names.MISMATCH_TAINT}')"


NODES = Policy(
    "gpu-orchestrator-agent-nodes",
    "An agent writes of its own node what it counts of our resource, and our taint.\n"
    "A role cannot say that: a caller with an agent's token has the rights of all agents.",
    (Resources(("nodes", "nodes/status"), ("UPDATE",)),),
    (
        Validation(
            "object.metadata.name in variables.nodes",
            "'an agent writes to its own node alone, not to ' + object.metadata.name",
            is_computed=True,
        ),
        Validation(
            " && ".join(
                (
                    _unchanged("metadata.?labels"),
                    _unchanged("metadata.?annotations"),
                    _unchanged("metadata.?ownerReferences"),
                    _unchanged("metadata.?finalizers"),
                    _unchanged("spec.?unschedulable"),
                    _unchanged("spec.?providerID"),
                    f"{_taints_of_others('object')} == {_taints_of_others('oldObject')}",
                )
            ),
            f"an agent changes nothing of its node but {names.MILLIGPU} and the taint {names.MISMATCH_TAINT}",
        ),
        Validation(
            " && ".join(
                (
                    *(_only_ours_changed(each) for each in _COUNTED),
                    *(_unchanged(f"status.?{each}") for each in _STATUS_OF_OTHERS),
                )
            ),
            f"an agent changes nothing of its node's status but {names.MILLIGPU}",
        ),
    ),
    conditions={"by-an-agent": cel.IS_AGENT},
    variables=_NODES,
    namespaces=None,
)

_HOST = ("hostPID", "hostNetwork", "hostIPC")

OWN_PODS = Policy(
    "gpu-orchestrator-own-pods",
    "In our namespace only the agent sees the host: its processes and the kubelet's socket. Nobody is "
    "privileged.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            f"variables.isAgent || ({' && '.join(f'!object.spec.?{each}.orValue(false)' for each in _HOST)} "
            "&& object.spec.?volumes.orValue([]).all(volume, !has(volume.hostPath)))",
            f"in namespace {names.NAMESPACE} only the pods of {names.AGENT} see the host; run this one "
            "elsewhere",
        ),
        Validation(
            f"({cel.CONTAINERS}).all(container, !container.?securityContext.?privileged.orValue(false))",
            f"no pod in namespace {names.NAMESPACE} is privileged; run this one elsewhere",
        ),
        Validation(
            "!variables.isAgent || (!object.spec.?hostNetwork.orValue(false) && "
            "!object.spec.?hostIPC.orValue(false) && object.spec.?volumes.orValue([]).all(volume, "
            "!has(volume.hostPath) || volume.hostPath.path.startsWith('/var/lib/kubelet/') || "
            f"volume.hostPath.path == '{sharing.ROOT}'))",
            "of the host, the agent needs its processes (hostPID), the kubelet's sockets "
            f"(/var/lib/kubelet) and the folders of its MPS daemons ({sharing.ROOT}); remove the rest",
        ),
    ),
    variables={"isAgent": f"object.spec.?serviceAccountName.orValue('') == '{names.AGENT}'"},
    namespaces={"matchLabels": {NAMESPACE_NAME: names.NAMESPACE}},
)

POLICIES = (LEASES, REPORTS, NODES, OWN_PODS, PRIORITY, WORKLOAD_PRIORITY)
