"""What only we write: the annotations that answer a claimed pod, its binding and status, and the marks on our
own kinds. Pods that a template makes are judged when they are created."""

from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies import cel
from gpu_orchestrator.api.admission_policies.policy import Policy, Resources, Validation

PODS = ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")
NOT_THE_SCHEDULER = {"not-the-scheduler": f"!{cel.IS_SCHEDULER}"}
BINDS_EVERYWHERE = "authorizer.group('').resource('pods').subresource('binding').check('create').allowed()"
_STATUS = "authorizer.group('').resource('pods').subresource('status')"
WRITES_STATUS_EVERYWHERE = f"{_STATUS}.check('patch').allowed() || {_STATUS}.check('update').allowed()"
KEPT = cel.text_list((*names.ASKING_ANNOTATIONS, *names.GANG_ANNOTATIONS))
NEW, OLD = {"new": cel.annotations("object")}, {"old": cel.old("metadata.?annotations", "{}")}

ANSWERS = Policy(
    "gpu-orchestrator-answers",
    "Which GPUs a pod was given is written by the gpu-scheduler alone: a container reads it as its devices.",
    (Resources(PODS, ("CREATE", "UPDATE")),),
    (
        Validation(
            f"{cel.ANSWERS}.all(key, variables.new[?key] == variables.old[?key])",
            f"{cel.ANSWERS}.filter(key, variables.new[?key] != variables.old[?key]).join(', ') + ' says "
            "which "
            "GPUs the pod was given, and only the gpu-scheduler writes it; ' + request.userInfo.username + "
            "' cannot "
            "set, change or remove it: leave it out'",
            is_computed=True,
        ),
    ),
    conditions=NOT_THE_SCHEDULER,
    variables=NEW | OLD,
)

ASKS = Policy(
    "gpu-orchestrator-asks",
    "What a pod asks for, and with which others, is decided at its creation: it was counted, admitted and\n"
    "perhaps bound with that.",
    (Resources(PODS, ("UPDATE",)),),
    (
        Validation(
            f"{KEPT}.all(key, variables.new[?key] == variables.old[?key])",
            f"{KEPT}.filter(key, variables.new[?key] != variables.old[?key]).join(', ') + ' cannot be "
            "set, "
            "changed or removed after the creation of the pod; delete the pod and create it again'",
            is_computed=True,
            reason="Invalid",
        ),
    ),
    variables=NEW | OLD,
)

BINDINGS = Policy(
    "gpu-orchestrator-bindings",
    "A binding does not show its pod. So the right to bind in one namespace, which a tenant may have, is not "
    "enough:\nschedulers may bind in all of them.",
    (Resources(("pods/binding", "bindings"), ("CREATE",)),),
    (
        Validation(
            f"{cel.annotations('object')}.all(key, !key.startsWith('gpu.scheduling/'))",
            "'only the gpu-scheduler binds pods with annotations of gpu.scheduling/; ' + "
            "request.userInfo.username + "
            "' is not its ServiceAccount: leave them out, and let the gpu-scheduler bind the pod'",
            is_computed=True,
        ),
        Validation(
            BINDS_EVERYWHERE,
            "request.userInfo.username + ' may bind pods in this namespace alone, and so could give away "
            "what the "
            "gpu-scheduler holds; leave it to the pod\\'s scheduler, or let an administrator grant create on "
            "pods/binding by a ClusterRoleBinding'",
            is_computed=True,
        ),
    ),
    conditions=NOT_THE_SCHEDULER,
)

POD_STATUS = Policy(
    "gpu-orchestrator-pod-status",
    "A pod that seems to have ended loses its GPUs. So the status of a claimed pod is written by the "
    "kubelet and by "
    "controllers,\nwhich may do so in all namespaces.",
    (Resources(("pods/status",), ("UPDATE",)),),
    (
        Validation(
            WRITES_STATUS_EVERYWHERE,
            "request.userInfo.username + ' cannot write the status of a pod with GPUs: the GPUs of one that "
            "seems to "
            "have ended go to others; delete the pod to end it'",
            is_computed=True,
        ),
    ),
    conditions=NOT_THE_SCHEDULER | {"claimed": cel.is_claimed("oldObject")},
)

_FORCE = (
    "request.userInfo.username + ' cannot end a pod with GPUs at once (--force, gracePeriodSeconds: 0): its "
    "GPUs would go to others while its containers still run; delete it without, or ask an administrator'"
)
DELETES_EVERYWHERE = "authorizer.group('').resource('pods').check('delete').allowed()"

FORCED = Policy(
    "gpu-orchestrator-forced-deletions",
    "A pod that is deleted by force is gone from the API server at once, and its containers run on until its "
    "own\ngrace period is over. So only those do that who may delete pods in all namespaces: kubelets and "
    "controllers.",
    (Resources(("pods",), ("DELETE",)),),
    (Validation(DELETES_EVERYWHERE, _FORCE, is_computed=True),),
    conditions={
        "by-force": "request.?options.?gracePeriodSeconds.orValue(1) == 0",
        "claimed": cel.is_claimed("oldObject"),
        "bound": "oldObject.spec.?nodeName.orValue('') != ''",
        "not-over": "!(oldObject.?status.?phase.orValue('') in ['Succeeded', 'Failed'])",
    },
)

FORCED_EVICTIONS = Policy(
    "gpu-orchestrator-forced-evictions",
    "The same for an eviction, which does not show its pod: so for every pod.",
    (Resources(("pods/eviction",), ("CREATE",)),),
    (Validation(DELETES_EVERYWHERE, _FORCE, is_computed=True),),
    conditions={"by-force": "object.?deleteOptions.?gracePeriodSeconds.orValue(1) == 0"},
)

_MARKS = cel.text_list((names.POD_UID, names.MANAGED))
_NOTES = cel.text_list(
    (names.LEASE_POD, names.LEASE_NAMESPACE, names.LEASE_NODE, names.LEASE_UUID, names.LEASE_HOLDERS)
)
_IS_TRUSTED = {"not-trusted": f"!({cel.IS_KUBERNETES}) && !({cel.IS_ADMINISTRATOR})"}


def _same_finalizer(finalizer: str) -> str:
    return f"('{finalizer}' in variables.finalizers) == ('{finalizer}' in variables.oldFinalizers)"


_FINALIZERS = {
    "finalizers": "object.metadata.?finalizers.orValue([])",
    "oldFinalizers": cel.old("metadata.?finalizers", "[]"),
}

CLAIMS = Policy(
    "gpu-orchestrator-claims",
    "Which pod a claim serves is written by the gpu-scheduler: into its status, and as marks on the claim.",
    (Resources(("gpuclaims", "gpuclaims/status"), ("CREATE", "UPDATE"), names.SCHEDULING_GROUP),),
    (
        Validation(
            "request.?subResource.orValue('') != 'status'",
            "only the gpu-scheduler writes the status of a GpuClaim; delete the pod that uses the claim to "
            "free it",
        ),
        Validation(
            _same_finalizer(names.CLAIM_FINALIZER),
            f"only the gpu-scheduler sets and removes the finalizer {names.CLAIM_FINALIZER}; delete the pod "
            "that uses "
            "the claim, and the finalizer goes",
        ),
        Validation(
            f"{cel.same(_MARKS, new='variables.labels', before='variables.oldLabels')} && "
            f"{cel.same(_NOTES, new='variables.new', before='variables.old')}",
            f"only the gpu-scheduler writes the marks of a GpuClaim, such as the label {names.POD_UID} and "
            "the "
            f"annotation {names.LEASE_POD}; leave them out",
        ),
        Validation(
            "variables.owners == variables.oldOwners",
            "only the gpu-scheduler makes a GpuClaim that a pod owns; name a claim with the annotation "
            f"{names.CLAIM_TEMPLATE} and each pod gets its own",
        ),
    ),
    conditions=NOT_THE_SCHEDULER | _IS_TRUSTED,
    variables=NEW
    | OLD
    | _FINALIZERS
    | {
        "labels": "object.metadata.?labels.orValue({})",
        "oldLabels": cel.old("metadata.?labels", "{}"),
        "owners": "object.metadata.?ownerReferences.orValue([]).filter(owner, owner.kind == 'Pod')"
        ".map(owner, owner.uid)",
        "oldOwners": "(oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([]))"
        ".filter(owner, owner.kind == 'Pod').map(owner, owner.uid)",
    },
)

WORKLOADS = Policy(
    "gpu-orchestrator-workloads",
    "How a workload stands is written by the operator, and its finalizer keeps it until its Job is gone.",
    (
        Resources(
            ("gpuworkloads", "gpuworkloads/status"),
            ("CREATE", "UPDATE"),
            names.WARP_GROUP,
            names.WARP_VERSION,
        ),
    ),
    (
        Validation(
            "request.?subResource.orValue('') != 'status'",
            "only the operator writes the status of a GPUWorkload; change its spec, or delete it",
        ),
        Validation(
            _same_finalizer(names.WORKLOAD_FINALIZER),
            f"only the operator sets and removes the finalizer {names.WORKLOAD_FINALIZER}; delete the "
            "workload, and the "
            "operator removes it once the Job is gone",
        ),
    ),
    conditions={"not-the-operator": f"!({cel.IS_OPERATOR})"} | _IS_TRUSTED,
    variables=_FINALIZERS,
)

POLICIES = (ANSWERS, ASKS, BINDINGS, POD_STATUS, FORCED, FORCED_EVICTIONS, CLAIMS, WORKLOADS)
