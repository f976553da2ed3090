"""Forged claims, workloads, leases, reports, priorities and namespaces."""

from collections.abc import Iterator

from gpu_orchestrator.api import names
from tests.forgery.calls import NEIGHBOUR, PODS, SYSTEM, TEAM, Call, Json, create, merge
from tests.forgery.pods import ASKS, CLAIM, container, plain, ready

CLAIMS = f"/apis/gpu.scheduling/v1/namespaces/{TEAM}/gpuclaims"
WORKLOADS = f"/apis/gpu.warp.dev/v1alpha1/namespaces/{TEAM}/gpuworkloads"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
NODES = "/api/v1/nodes"
OWN_PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
CROWDED, FEW = "crowded", "few-gpus"
"""Namespaces of the tenant with quotas."""
USED, WORKLOAD = "used", "trained"
"""A claim that a pod has, and a workload that the operator has taken up."""
EDITOR = "editor"
"""Has the role `edit` in all namespaces, ours included."""
OPERATOR = f"system:serviceaccount:{SYSTEM}:{names.OPERATOR}"
SCHEDULER = f"system:serviceaccount:{SYSTEM}:{names.SCHEDULER}"
AGENT_HERE, AGENT_NOWHERE = "agent of gpu-node-0", "agent without a node"
RBAC = "cannot "


def calls() -> Iterator[Call]:
    yield from claims()
    yield from workloads()
    yield from leases()
    yield from reports()
    yield from nodes()
    yield from own_pods()
    yield from priorities()
    yield from gangs()
    yield from crowds()
    yield from namespaces()


def claim(name: str = "forged", **meta: object) -> Json:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name, **meta},
        "spec": {"devices": {"count": 1}},
    }


def claims() -> Iterator[Call]:
    """F8: marks of the scheduler on a claim."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "bound", "uid": "0000"}
    says = {
        "finalizer": "only the gpu-scheduler sets and removes the finalizer gpu.scheduling/in-use",
        "marks": "only the gpu-scheduler writes the marks of a GpuClaim",
        "owner": "only the gpu-scheduler makes a GpuClaim that a pod owns",
        "status": "only the gpu-scheduler writes the status of a GpuClaim",
    }
    notes = ("pod", "namespace", "node", "uuid", "holders")
    marks: dict[str, tuple[str, Json]] = {
        "the finalizer": ("finalizer", {"finalizers": ["other/one", names.CLAIM_FINALIZER]}),
        "a pod as owner": ("owner", {"ownerReferences": [owner]}),
        "a pod's UID": ("marks", {"labels": {names.POD_UID: "0000"}}),
        "an empty UID": ("marks", {"labels": {names.POD_UID: ""}}),
        "the managed label": ("marks", {"labels": {names.MANAGED: "true"}}),
        **{f"a {each}": ("marks", {"annotations": {f"gpu.scheduling/{each}": "x"}}) for each in notes},
    }
    for what, (rule, meta) in marks.items():
        yield Call(f"F8 claim made with {what}", "POST", CLAIMS, claim(**meta), says[rule])
        if "finalizer" not in what:
            yield merge(f"F8 claim given {what}", f"{CLAIMS}/{CLAIM}", {"metadata": meta}, says[rule])
    finalizer = {"metadata": {"finalizers": [names.CLAIM_FINALIZER]}}
    yield merge("F8 claim given the finalizer", f"{CLAIMS}/{CLAIM}", finalizer, says["finalizer"])
    removals: dict[str, tuple[str, Json]] = {
        "finalizer": ("finalizer", {"finalizers": []}),
        "finalizers": ("finalizer", {"finalizers": None}),
        "UID": ("marks", {"labels": {names.POD_UID: None}}),
        "labels": ("marks", {"labels": None}),
        "pod": ("marks", {"annotations": {names.LEASE_POD: None}}),
        "annotations": ("marks", {"annotations": None}),
        "owner": ("owner", {"ownerReferences": []}),
    }
    for what, (rule, meta) in removals.items():
        yield merge(f"F8 used claim without its {what}", f"{CLAIMS}/{USED}", {"metadata": meta}, says[rule])
    states: list[Json] = [
        {"phase": "Released"},
        {"phase": "Bound", "nodeName": "gpu-node-0", "gpuIds": [0]},
        {"allocated": "gpu-node-0:0"},
        {"podUID": "0000"},
    ]
    for status in states:
        for name in (CLAIM, USED):
            at, body = f"{CLAIMS}/{name}/status", {"status": status}
            yield merge(f"F8 {name} with status {sorted(status)}", at, body, says["status"])
    other = f"/apis/gpu.scheduling/v1/namespaces/{NEIGHBOUR}/gpuclaims"
    yield Call("F8 claim in another namespace", "POST", other, claim(), RBAC)
    yield merge("F8 claim of another namespace", f"{other}/theirs", {"metadata": {"finalizers": []}}, RBAC)
    yield Call("F8 claim of another namespace deleted", "DELETE", f"{other}/theirs", None, RBAC)


def workload(name: str = "forged", priority: str = "normal", **meta: object) -> Json:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": name, **meta},
        "spec": {"modelName": "m", "gpuCount": 1, "priority": priority},
    }


def workloads() -> Iterator[Call]:
    says = "only the operator sets and removes the finalizer gpu.warp.dev/finalizer"
    mark = [names.WORKLOAD_FINALIZER]
    yield Call("F8 workload made with the finalizer", "POST", WORKLOADS, workload(finalizers=mark), says)
    for left in ([], None, ["other/one"]):
        body = {"metadata": {"finalizers": left}}
        yield merge(f"F8 workload with finalizers {left}", f"{WORKLOADS}/{WORKLOAD}", body, says)
    says = "only the operator writes the status of a GPUWorkload"
    for status in ({"phase": "Succeeded"}, {"assignedNode": "gpu-node-0"}, {"retryCount": 0}):
        at = f"{WORKLOADS}/{WORKLOAD}/status"
        yield merge(f"F8 workload with status {sorted(status)}", at, {"status": status}, says)


def lease(name: str, holder: str = "forged", *, managed: bool = False) -> Json:
    labels = {names.MANAGED: "true"} if managed else {}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": labels},
        "spec": {"holderIdentity": holder},
    }


def leases() -> Iterator[Call]:
    """Leases say who holds a device: written by their own process alone."""
    made = {
        "device": "gpu-gpu-node-1-0",
        "leader": "gpu-scheduler.gpu.scheduling",
        "operator": names.OPERATOR_LEASE,
    }
    made |= {"agent": "gpu-agent-gpu-node-1", "canary": "canary-gpu-scheduler.gpu.scheduling"}
    owners = {"device": SCHEDULER, "leader": SCHEDULER, "operator": OPERATOR, "agent": "", "canary": ""}
    for what, name in made.items():
        yield Call(f"F8 tenant makes the lease of a {what}", "POST", LEASES, lease(name), RBAC)
        for user in (EDITOR, OPERATOR, SCHEDULER):
            if owners[what] == user:
                continue
            says = f"Lease {name} says who holds a GPU, who leads or which agent lives"
            yield Call(f"F8 {user} makes the lease of a {what}", "POST", LEASES, lease(name), says, user)
    says = "says who holds a GPU"
    for user in (EDITOR, OPERATOR):
        yield Call(
            f"F8 {user} makes a managed lease", "POST", LEASES, lease("other", managed=True), says, user
        )
    held = f"{LEASES}/gpu-gpu-node-0-0"
    yield merge("F8 editor takes a device", held, {"spec": {"holderIdentity": "me"}}, says, user=EDITOR)
    yield merge(
        "F8 editor hides a device", held, {"metadata": {"labels": {names.MANAGED: None}}}, says, user=EDITOR
    )
    yield Call("F8 editor frees a device", "DELETE", held, None, says, EDITOR)
    yield Call("F8 tenant frees a device", "DELETE", held, None, RBAC)
    leads = {"spec": {"holderIdentity": "me"}}
    yield merge("F8 editor leads", f"{LEASES}/gpu-scheduler.gpu.scheduling", leads, says, user=EDITOR)
    own = "gpu-agent-gpu-node-1"
    yield Call("F13 agent lives on another node", "POST", LEASES, lease(own), says, AGENT_HERE)
    yield Call("F13 agent without a node lives", "POST", LEASES, lease(own), says, AGENT_NOWHERE)
    yield Call("F13 agent takes a device", "POST", LEASES, lease("gpu-gpu-node-0-3"), says, AGENT_HERE)


def report(name: str, node: str = "") -> Json:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {"name": name},
        "spec": {"nodeName": node or name},
    }


def reports() -> Iterator[Call]:
    """F13: the devices of another node."""
    says = "is written by the agent on that node alone"
    total: Json = {"status": {"total": 0, "devices": []}}
    for user in (AGENT_HERE, AGENT_NOWHERE):
        for name, node in (("gpu-node-2", ""), ("gpu-node-2", "gpu-node-0"), ("gpu-node-0", "gpu-node-2")):
            if user == AGENT_HERE or node != "gpu-node-2":
                yield Call(
                    f"F13 {user} makes {name} for {node or name}",
                    "POST",
                    REPORTS,
                    report(name, node),
                    says,
                    user,
                )
        at = f"{REPORTS}/gpu-node-1"
        yield merge(f"F13 {user} reports gpu-node-1", f"{at}/status", total, says, user=user)
        yield merge(
            f"F13 {user} labels gpu-node-1", at, {"metadata": {"labels": {"a": "b"}}}, says, user=user
        )
        yield Call(f"F13 {user} deletes gpu-node-1", "DELETE", at, None, says, user)
    yield Call("F13 tenant makes a report", "POST", REPORTS, report("gpu-node-2"), RBAC)
    yield merge("F13 tenant reports", f"{REPORTS}/gpu-node-1/status", total, RBAC)


def counted(amount: str | None) -> Json:
    """Return a node's status with this amount of our resource."""
    return {"status": {field: {names.MILLIGPU: amount} for field in ("capacity", "allocatable")}}


def nodes() -> Iterator[Call]:
    """F13: an agent that writes more of nodes than what its own has of our resource, and our taint."""
    says = "an agent writes to its own node alone"
    taint = {"spec": {"taints": [{"key": names.MISMATCH_TAINT, "effect": "NoSchedule"}]}}
    for user in (AGENT_HERE, AGENT_NOWHERE):
        other = f"{NODES}/gpu-node-1"
        yield merge(f"F13 {user} counts gpu-node-1", f"{other}/status", counted("1"), says, user=user)
        yield merge(f"F13 {user} taints gpu-node-1", other, taint, says, user=user)
    own, says = f"{NODES}/gpu-node-0", "an agent changes nothing of its node but"
    changed: dict[str, Json] = {
        "a label": {"metadata": {"labels": {"a": "b"}}},
        "an annotation": {"metadata": {"annotations": {names.NODE_DEVICES: "{}"}}},
        "a finalizer": {"metadata": {"finalizers": ["a/b"]}},
    }
    for what, body in changed.items():
        for part in ("", "/status"):
            yield merge(f"F13 agent changes {what} of node{part}", own + part, body, says, user=AGENT_HERE)
    spec: dict[str, Json] = {
        "another taint": {"taints": [{"key": "a/b", "effect": "NoExecute"}]},
        "unschedulable": {"unschedulable": True},
    }
    for what, body in spec.items():
        yield merge(f"F13 agent sets {what}", own, {"spec": body}, says, user=AGENT_HERE)
    says = "an agent changes nothing of its node's status but"
    status: dict[str, Json] = {
        "fewer CPUs": {"capacity": {"cpu": "1"}},
        "no GPUs": {"allocatable": {"nvidia.com/gpu": None}},
        "another resource": {"capacity": {"example.com/a": "1"}},
        "no condition": {"conditions": []},
        "an address": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        "a volume": {"volumesInUse": ["a"]},
    }
    for what, body in status.items():
        yield merge(f"F13 agent writes {what}", f"{own}/status", {"status": body}, says, user=AGENT_HERE)


def own_pod(account: str, **spec: object) -> Json:
    """Return a pod of our namespace."""
    made = plain(name="ours", **spec)
    made["metadata"]["namespace"] = SYSTEM
    made["spec"]["serviceAccountName"] = account
    return made


def own_pods() -> Iterator[Call]:
    """F7: what only the agent needs of the host, and what nobody needs."""
    path = [{"name": "host", "hostPath": {"path": "/"}}]
    for field in ("hostPID", "hostNetwork", "hostIPC"):
        body = own_pod("default", **{field: True})
        says = f"only the pods of {names.AGENT} see the host"
        yield Call(f"F7 pod of ours with {field}", "POST", OWN_PODS, body, says, EDITOR)
    body = own_pod("default", volumes=path)
    yield Call("F7 pod of ours with a host path", "POST", OWN_PODS, body, says, EDITOR)
    says = "of the host, the agent needs its processes"
    seen: dict[str, Json] = {
        "network": {"hostNetwork": True},
        "IPC": {"hostIPC": True},
        "path": {"volumes": path},
    }
    for near in ("/run", "/run/gpu-mps/owned", "/run/gpu-mps-not"):
        seen[f"path {near}"] = {"volumes": [{"name": "host", "hostPath": {"path": near}}]}
    for what, spec in seen.items():
        body = own_pod(names.AGENT, **spec)
        yield Call(f"F7 agent with the host's {what}", "POST", OWN_PODS, body, says, EDITOR)
    some = container(securityContext={"privileged": True})
    body = own_pod(names.AGENT, containers=[some])
    says = f"no pod in namespace {SYSTEM} is privileged"
    yield Call("F7 privileged agent", "POST", OWN_PODS, body, says, EDITOR)


def priorities() -> Iterator[Call]:
    """F10: before the work of others."""
    label = "let an administrator label the namespace gpu.scheduling/allow-high-priority=true"
    for kind, made in (("plain", plain), ("claimed", ready)):
        high = made(name="high", priorityClassName="gpu-high")
        yield create(f"F10 {kind} pod of high priority", high, label)
        ours = made(name="ours", priorityClassName="gpu-orchestrator-controllers")
        yield create(f"F10 {kind} pod with our own priority", ours, "is for the controllers in namespace")
        number = made(name="number", priority=2_000_000_000)
        yield create(f"F10 {kind} pod with a number of its own", number, "integer value of priority")
    for critical in ("system-node-critical", "system-cluster-critical"):
        for ask in ASKS:
            body = ready(ask, name="critical", priorityClassName=critical)
            yield create(f"F10 {ask} pod that is {critical}", body, label)
    yield Call("F10 workload of high priority", "POST", WORKLOADS, workload(priority="high"), label)
    raised = {"spec": {"priority": "high"}}
    yield merge("F10 workload raised", f"{WORKLOADS}/{WORKLOAD}", raised, label)


def gangs() -> Iterator[Call]:
    """F10: a claim that joins the gang of another namespace, or another gang than it was made for."""
    for name in (f"{NEIGHBOUR}/gang", f"../{NEIGHBOUR}/gang", "gang\nof others", ""):
        made = {**claim(), "spec": {"devices": {"count": 1}, "gangRef": name, "gangSize": 2}}
        yield Call(f"F10 claim in gang {name!r}", "POST", CLAIMS, made, "spec.gangRef")
    alone = {**claim(), "spec": {"devices": {"count": 1}, "gangSize": 2}}
    yield Call(
        "F10 claim with the size of no gang", "POST", CLAIMS, alone, "spec.gangSize needs spec.gangRef"
    )
    joined = {"spec": {"gangRef": "others"}}
    for name in (CLAIM, USED):
        yield merge(f"F10 {name} joins a gang", f"{CLAIMS}/{name}", joined, "spec.gangRef")


def crowds() -> Iterator[Call]:
    """F15: more than the quota of a namespace lets in. What many pods that wait do to others is played by
    tests/scenarios/scheduler/test_crowd.py."""
    pods, says = PODS.replace(TEAM, CROWDED), "exceeded quota: "
    for ask in ASKS:
        yield Call(f"F15 one {ask} pod more", "POST", pods, ready(ask), f"{says}pods")
        yield Call(
            f"F15 {ask} pod of more GPUs", "POST", pods.replace(CROWDED, FEW), ready(ask), f"{says}gpus"
        )
    yield Call("F15 one plain pod more", "POST", pods, plain(), f"{says}pods")
    yield Call("F15 one claim more", "POST", CLAIMS.replace(TEAM, CROWDED), claim(), f"{says}claims")
    yield Call(
        "F15 one workload more", "POST", WORKLOADS.replace(TEAM, CROWDED), workload(), f"{says}workloads"
    )


QUOTAS: dict[str, dict[str, Json]] = {
    CROWDED: {
        "pods": {"pods": "0"},
        "claims": {"count/gpuclaims.gpu.scheduling": "0"},
        "workloads": {"count/gpuworkloads.gpu.warp.dev": "0"},
    },
    FEW: {"gpus": {f"requests.{names.MILLIGPU}": "1000"}},
}
"""What the namespaces of `crowds` may have, by the name of the quota."""


def namespaces() -> Iterator[Call]:
    """F9: out of the reach of selectors."""
    labels = {
        "kubernetes.io/metadata.name": "kube-system",
        names.ALLOW_HIGH_PRIORITY: "true",
        names.HIDE_GPUS: "false",
    }
    for key, value in labels.items():
        body = {"metadata": {"labels": {key: value}}}
        yield merge(f"F9 tenant sets {key}", f"/api/v1/namespaces/{TEAM}", body, RBAC)
    exempt = "/api/v1/namespaces/kube-system/pods"
    yield Call("F9 pod in an exempt namespace", "POST", exempt, ready(), RBAC)
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpu-orchestrator-answers"
    yield Call("F9 policy deleted", "DELETE", policies, None, RBAC)
