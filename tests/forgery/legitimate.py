"""Requests that must pass: ordinary pods of all sorts, claimed pods, and what our own processes write."""

from collections.abc import Iterator
from typing import Any

from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies.claimed_pods import MOST_CONTAINERS, MOST_VARIABLES
from tests.forgery import changes, creations, kinds
from tests.forgery.calls import (
    APPLY,
    PODS,
    STRATEGIC,
    SYSTEM,
    TEAM,
    TENANT,
    Call,
    Json,
    annotate,
    create,
    merge,
)
from tests.forgery.changes import ANSWER, BOUND, NAMED, PLAIN, WAITING, binding
from tests.forgery.pods import ASKS, MIG, SHARE, bare, changed, container, plain, ready

KUBELET = "system:node:gpu-node-0"
KUBE_SCHEDULER = "system:kube-scheduler"
READINESS = "controller of readiness gates"
"""It may update the status of all pods, and not patch it."""
ISTIO = {
    "sidecar.istio.io/status": "{}",
    "prometheus.io/scrape": "true",
    "kubectl.kubernetes.io/default-container": "main",
}
ARGO = {
    "argocd.argoproj.io/sync-wave": "1",
    "workflows.argoproj.io/node-name": "a.b",
    "argocd.argoproj.io/tracking-id": "x",
}
HARMLESS_PATHS = (
    "/var/cache/models",
    "/etc/ssl/certs",
    "/etc/localtime",
    "/mnt",
    "/developers",
    "/runs",
    "/var/lib/m",
)
ALL_GPUS = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

OF_TEMPLATES = ("plain", "Istio sidecar", "resources", "volumes", "tolerations")
"""Shapes that are also tried with a template, which takes the same way as a claim."""
HARMLESS = {"add": ["NET_ADMIN", "IPC_LOCK", "SYS_PTRACE"], "drop": ["ALL"]}
"""Rights that service meshes, RDMA and debuggers need."""


def shapes() -> dict[str, dict[str, Any]]:
    """Return arguments for pods that may be claimed or not."""
    limits = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    secret = [{"secretRef": {"name": "settings"}}, {"configMapRef": {"name": "settings"}, "prefix": "X_"}]
    fields = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    data = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
    host = [{"name": f"h{number}", "hostPath": {"path": path}} for number, path in enumerate(HARMLESS_PATHS)]
    proxy = container("istio-proxy", restartPolicy="Always", securityContext={"runAsUser": 1337})
    probes: Json = {"livenessProbe": {"httpGet": {"path": "/", "port": 80}}, "ports": [{"containerPort": 80}]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
            }
        }
    }
    number_each = MOST_VARIABLES // MOST_CONTAINERS - len(names.DEVICE_ENV)
    return {
        "plain": {},
        "labels": {"labels": {"app": "a", "app.kubernetes.io/name": "b"}},
        "Argo annotations": {"annotations": ARGO},
        "Istio annotations": {"annotations": ISTIO},
        "leave to move it": {"annotations": dict.fromkeys(names.KEEP_RUNNING, "true")},
        "leave to disrupt it": {"annotations": {"karpenter.sh/do-not-disrupt": ""}},
        "two containers": {"containers": [container(), container("side")]},
        "init container": {"initContainers": [container("init", command=["true"])]},
        "Istio sidecar": {"initContainers": [container("istio-init"), proxy], "annotations": ISTIO},
        "resources": {"containers": [container(resources=limits)]},
        "rdma resource": {
            "containers": [container(resources={"limits": {"rdma/hca": "1"}, "requests": {"rdma/hca": "1"}})]
        },
        "network adapter": {
            "containers": [
                container(
                    resources={"limits": {"nvidia.com/hostdev": "1"}, "requests": {"nvidia.com/hostdev": "1"}}
                )
            ]
        },
        "envFrom": {"containers": [container(envFrom=secret)]},
        "downward API": {"containers": [container(env=fields)]},
        "user's variables": {"containers": [container(env=[{"name": "A", "value": "$(NODE)"}])]},
        "volumes": {"volumes": data, "containers": [container(volumeMounts=mounts)]},
        "harmless hostPath": {"volumes": host},
        "probes": {"containers": [container(**probes)]},
        "node selector": {"nodeSelector": {"zone": "a"}},
        "affinity": {"affinity": affinity},
        "tolerations": {
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"operator": "Exists"}]
        },
        "toleration of one effect": {
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        },
        "scheduling gate": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        "restricted": {
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        },
        "not privileged": {"containers": [container(securityContext={"privileged": False})]},
        "harmless capabilities": {"containers": [container(securityContext={"capabilities": HARMLESS})]},
        "host network": {"hostNetwork": True},
        "normal priority": {"priorityClassName": "gpu-normal"},
        "low priority": {"priorityClassName": "gpu-low"},
        "deadline": {
            "activeDeadlineSeconds": 60,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
        },
        "finalizer": {"meta": {"finalizers": ["example.com/keep"]}},
        "generated name": {"meta": {"generateName": "job-"}},
        "many variables": {
            "containers": [
                container(f"c{number}", env=[{"name": f"V{each}", "value": "x" * 20} for each in range(60)])
                for number in range(8)
            ]
        },
        "as many variables as may be": {
            "containers": [
                container(
                    f"c{number}", env=[{"name": f"V{each}", "value": "x"} for each in range(number_each)]
                )
                for number in range(MOST_CONTAINERS)
            ]
        },
        "many volumes": {"volumes": [{"name": f"v{number}", "emptyDir": {}} for number in range(100)]},
    }


def unclaimed() -> Iterator[Call]:
    """Return pods that ask for nothing of ours; they must stay as they are."""
    for what, shape in shapes().items():
        yield create(f"plain pod with {what}", plain("legit", **shape))
    device = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    host = [{"name": "dev", "hostPath": {"path": "/dev"}}]
    others: dict[str, dict[str, Any]] = {
        "a device plugin's GPU": {"containers": [container(resources=device)]},
        "NVIDIA_VISIBLE_DEVICES": {"containers": [container(env=ALL_GPUS)]},
        "privileges": {"containers": [container(securityContext={"privileged": True})]},
        "hostPID": {"hostPID": True},
        "hostPath /dev": {"volumes": host},
        "a node": {"nodeName": "gpu-node-0"},
        "another scheduler": {"schedulerName": "volcano"},
        "our scheduler": {"schedulerName": "gpu-scheduler"},
        "a gang of ours": {"annotations": {"gpu.scheduling/gang": "g", "gpu.scheduling/gang-size": "2"}},
        "a strategy of ours": {"annotations": {"gpu.scheduling/strategy": "binPack"}},
        "a CDI annotation": {"annotations": {"cdi.k8s.io/x": "vendor.com/nic=0"}},
        "a block device": {
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
            "containers": [container(volumeDevices=[{"name": "d", "devicePath": "/dev/xvda"}])],
        },
    }
    for what, shape in others.items():
        yield create(f"plain pod with {what}", plain("legit", **shape))
    applied = plain("applied")
    yield Call("plain pod by server-side apply", "PATCH", f"{PODS}/applied", applied, content_type=APPLY)


def claimed() -> Iterator[tuple[str, Json]]:
    """Return claimed pods as users write them, each with its name."""
    for ask in ASKS:
        for what, shape in shapes().items():
            if ask == "template" and what not in OF_TEMPLATES:
                continue
            yield f"{ask} pod with {what}", bare(ask, "legit", **shape)
    for name in (MIG, SHARE):
        yield f"pod with claim {name}", plain("legit", annotations={names.CLAIM: name})
    for number in ("1", "07", "64"):
        yield f"pod with {number} GPUs", plain("legit", annotations={names.GPUS: number})
    for number in ("0", "00"):
        launcher = {names.GPUS: number, names.GANG: "g", names.GANG_SIZE: "2"}
        yield f"member of a gang with {number} GPUs", plain("legit", annotations=launcher)
    for name in ("gpu-scheduler", "canary-gpu-scheduler"):
        yield f"pod for {name}", bare("gpus", "legit", schedulerName=name)
    ours = ready("gpus", "legit")
    yield "pod with all that it needs", ours
    yield "pod that is a client of MPS", creations.mps_client("legit")
    yield (
        "pod whose own variables refer to ours",
        changed(
            bare("gpus", "legit"),
            "spec.containers.0.env",
            [{"name": "GPUS", "value": "$(CUDA_VISIBLE_DEVICES)"}],
        ),
    )


def changes_() -> Iterator[Call]:
    """Changes of pods that are there, by their owner."""
    for pod in (BOUND, WAITING, PLAIN, NAMED):
        at = f"{PODS}/{pod}"
        yield merge(f"{pod} labelled", at, {"metadata": {"labels": {"team": "a"}}})
        yield merge(f"{pod} annotated", at, annotate("1", "argocd.argoproj.io/refresh"))
        yield merge(f"{pod} with a finalizer", at, {"metadata": {"finalizers": ["example.com/keep"]}})
        yield merge(f"{pod} with another strategy", at, annotate("binPack", names.STRATEGY))
        applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"team": "b"}}}
        yield Call(f"{pod} applied", "PATCH", at, applied, content_type=APPLY)
        yield Call(f"{pod} deleted", "DELETE", at, None)
        yield Call(f"{pod} deleted soon", "DELETE", at, changes.ending_within(1))
        now = changes.ending_within(0)
        user = "admin" if pod == BOUND else TENANT
        yield Call(f"{pod} deleted by force by {user}", "DELETE", at, now, user=user)
        evicted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        yield Call(f"{pod} evicted", "POST", f"{at}/eviction", evicted)
        image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "train:2"}]
        yield Call(
            f"{pod} with another image", "PATCH", at, image, content_type="application/json-patch+json"
        )
        if pod != BOUND:  # simulated nodes do not support it
            body = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
            yield Call(f"{pod} resized", "PATCH", f"{at}/resize", body, content_type=STRATEGIC)
    yield changes.late(f"{PLAIN} with a debugger", PLAIN, {"env": ALL_GPUS}, "")
    debugger = {"env": ready()["spec"]["containers"][0]["env"], "stdin": True, "tty": True}
    for pod in (BOUND, WAITING):
        yield changes.late(f"{pod} with a debugger", pod, debugger, "")
    yield merge(f"{PLAIN} with a status", f"{PODS}/{PLAIN}/status", {"status": {"phase": "Running"}})


def processes() -> Iterator[Call]:
    """What kubelets, schedulers and our own processes write."""
    scheduler, operator = kinds.SCHEDULER, kinds.OPERATOR
    waits = {
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    }
    for pod in (WAITING, NAMED):
        yield merge(f"scheduler tells why {pod} waits", f"{PODS}/{pod}/status", waits, user=scheduler)
        bound = binding(pod, annotations=ANSWER)
        yield Call(f"scheduler binds {pod}", "POST", f"{PODS}/{pod}/binding", bound, user=scheduler)
    runs = {"status": {"phase": "Running"}}
    yield merge(f"kubelet says that {BOUND} runs", f"{PODS}/{BOUND}/status", runs, user=KUBELET)
    gate = {"type": "example.com/warm", "status": "True"}
    gated = {**ready("gpus", WAITING), "status": {"phase": "Pending", "conditions": [gate]}}
    yield Call(
        f"controller of readiness gates replaces the status of {WAITING}",
        "PUT",
        f"{PODS}/{WAITING}/status",
        gated,
        user=READINESS,
    )
    yield Call(
        f"kube-scheduler binds {PLAIN}",
        "POST",
        f"{PODS}/{PLAIN}/binding",
        binding(PLAIN),
        user=KUBE_SCHEDULER,
    )
    yield Call(f"admin binds {PLAIN}", "POST", f"{PODS}/{PLAIN}/binding", binding(PLAIN), user="admin")
    used = f"{kinds.CLAIMS}/{kinds.USED}"
    released = {
        "metadata": {
            "finalizers": [],
            "labels": {names.POD_UID: None},
            "annotations": {names.LEASE_POD: None},
        }
    }
    yield merge("scheduler releases a claim", used, released, user=scheduler)
    yield merge(
        "scheduler tells of a claim", f"{used}/status", {"status": {"phase": "Released"}}, user=scheduler
    )
    yield merge("admin repairs a claim", used, released, user="admin")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": BOUND, "uid": "0000"}
    child = kinds.claim(
        "child", finalizers=[names.CLAIM_FINALIZER], ownerReferences=[owner], labels={names.POD_UID: "0000"}
    )
    yield Call("scheduler makes a pod's own claim", "POST", kinds.CLAIMS, child, user=scheduler)
    marked = {"metadata": {"finalizers": [names.WORKLOAD_FINALIZER]}}
    at = f"{kinds.WORKLOADS}/{kinds.WORKLOAD}"
    yield merge("operator takes a workload up", at, marked, user=operator)
    yield merge("operator lets a workload go", at, {"metadata": {"finalizers": []}}, user=operator)
    yield merge(
        "operator tells of a workload", f"{at}/status", {"status": {"phase": "Running"}}, user=operator
    )
    yield Call("operator leads", "POST", kinds.LEASES, kinds.lease(names.OPERATOR_LEASE), user=operator)
    device = kinds.lease("gpu-gpu-node-1-0", managed=True)
    yield Call("scheduler takes a device", "POST", kinds.LEASES, device, user=scheduler)
    agentlike = kinds.lease("gpu-agent-a-0", managed=True)
    yield Call("scheduler takes a device of node agent-a", "POST", kinds.LEASES, agentlike, user=scheduler)
    yield Call("scheduler frees a device", "DELETE", f"{kinds.LEASES}/gpu-gpu-node-0-0", None, user=scheduler)
    yield Call("admin frees a device", "DELETE", f"{kinds.LEASES}/gpu-gpu-node-0-0", None, user="admin")
    lives = kinds.lease("gpu-agent-gpu-node-0")
    yield Call("agent lives", "POST", kinds.LEASES, lives, user=kinds.AGENT_HERE)
    yield Call(
        "agent makes its report", "POST", kinds.REPORTS, kinds.report("gpu-node-0"), user=kinds.AGENT_HERE
    )
    own = f"{kinds.NODES}/gpu-node-0"
    for amount in ("8000", None):
        yield merge(
            f"agent counts {amount} on its node",
            f"{own}/status",
            kinds.counted(amount),
            user=kinds.AGENT_HERE,
        )
    for taints in ([{"key": names.MISMATCH_TAINT, "effect": "NoSchedule"}], []):
        body = {"spec": {"taints": taints}}
        yield merge(f"agent sets {len(taints)} taints", own, body, user=kinds.AGENT_HERE)
    seen = [{"name": "socket", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}]
    daemons = [{"name": "mps", "hostPath": {"path": "/run/gpu-mps"}}]
    for what, volumes in (("runs", seen), ("keeps MPS daemons", seen + daemons)):
        runs = kinds.own_pod(names.AGENT, hostPID=True, volumes=volumes)
        yield Call(f"agent {what}", "POST", kinds.OWN_PODS, runs, user=kinds.EDITOR)
    yield Call("admin makes a report", "POST", kinds.REPORTS, kinds.report("gpu-node-2"), user="admin")
    elsewhere = kinds.LEASES.replace(SYSTEM, TEAM)
    yield Call("tenant makes a lease of its own", "POST", elsewhere, kinds.lease("gpu-mine"))
    yield Call(
        "editor makes another lease in our namespace",
        "POST",
        kinds.LEASES,
        kinds.lease("mine"),
        user=kinds.EDITOR,
    )


def kinds_() -> Iterator[Call]:
    """Claims and workloads of the tenant."""
    labels: Json = {"labels": {"team": "a"}, "annotations": {"note": "b"}, "finalizers": ["example.com/keep"]}
    yield Call("claim made", "POST", kinds.CLAIMS, kinds.claim())
    yield Call("claim made with labels", "POST", kinds.CLAIMS, kinds.claim(**labels))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings", "uid": "0000"}
    yield Call("claim made with an owner", "POST", kinds.CLAIMS, kinds.claim(ownerReferences=[owner]))
    yield merge(
        "used claim labelled", f"{kinds.CLAIMS}/{kinds.USED}", {"metadata": {"labels": {"team": "a"}}}
    )
    yield Call("used claim deleted", "DELETE", f"{kinds.CLAIMS}/{kinds.USED}", None)
    yield Call("workload made", "POST", kinds.WORKLOADS, kinds.workload())
    yield Call("workload of low priority", "POST", kinds.WORKLOADS, kinds.workload(priority="low"))
    at = f"{kinds.WORKLOADS}/{kinds.WORKLOAD}"
    yield merge("workload suspended", at, {"spec": {"suspend": True}})
    yield Call("workload deleted", "DELETE", at, None)
    rich = PODS.replace(TEAM, "rich")
    for made in (plain, ready):
        high = made(name="high", priorityClassName="gpu-high")
        yield Call(f"{made.__name__} pod of high priority where allowed", "POST", rich, high, user="admin")
    at = kinds.WORKLOADS.replace(TEAM, "rich")
    yield Call(
        "workload of high priority where allowed", "POST", at, kinds.workload(priority="high"), user="admin"
    )
    exempt = plain("exempt", annotations={names.ALLOCATED: "x"})
    yield Call(
        "anything in an exempt namespace", "POST", PODS.replace(TEAM, "kube-system"), exempt, user="admin"
    )
