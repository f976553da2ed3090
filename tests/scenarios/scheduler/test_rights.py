"""The shipped role grants exactly what the scheduler uses, as the audit log shows."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controlplane.audit import Entry
from controlplane.cluster import OPTIONAL, Cluster
from tests.conftest import NewCluster
from tests.faults.proxy import Answer, DropAnswer, Proxy
from tests.support import installation, rights
from tests.support import scheduler_stage as stages
from tests.support.paths import ROOT
from tests.support.scheduler_stage import SYSTEM, Stage, claim, devices, pod, until

CONFIG = ROOT / "config" / "scheduler"
USER = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
WATCHED = (
    "nodes",
    "pods",
    "persistentvolumes",
    "persistentvolumeclaims",
    "namespaces",
    "csinodes",
    "storageclasses",
    "gpuclaims",
    "gpunodestatuses",
    "gpuqueues",
    "leases",
)

GRANTED = rights.granted("scheduler/role.yaml")
DISCOVERY = ("/apis/scheduling.k8s.io/v1alpha2", "/apis/gpu.scheduling/v1", "selfsubjectaccessreviews")
"""Whether PodGroups and GpuQueues are served, and may be watched: any user may ask that."""


def sent(cluster: Cluster) -> list[Entry]:
    """Return what the ServiceAccount has requested."""
    entries = cluster.audit.entries(USER)
    return [entry for entry in entries if entry.user == USER and entry.resource not in DISCOVERY]


@pytest.fixture
def shipped(new_cluster: NewCluster, tmp_path: Path) -> Iterator[Stage]:
    """A cluster with everything in `config/default`, policies included; the scheduler runs as a process."""
    cluster = new_cluster(parts=OPTIONAL)
    stages.install(cluster)
    installation.install(cluster, {}, without=("webhook",))
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "work"}})
    stage = Stage(cluster, "work", tmp_path, closed=True)
    yield stage
    stage.close()


def test_role_grants_exactly_the_rights_that_are_used(shipped: Stage) -> None:
    account = shipped.cluster.service_account_kubeconfig(SYSTEM, "gpu-scheduler")
    with Proxy(account) as proxy:
        for resource in WATCHED:  # as a server that does not support streaming lists
            proxy.on("watch", resource, do=Answer(422, reason="Invalid"))
        use_every_right(shipped, proxy)
        shipped.running[-1].stop()
    # The audit log records a watch when it ends.
    with suppress(AssertionError):
        until(lambda: not rights.unused(GRANTED, sent(shipped.cluster)), "every right was used")
    assert rights.unused(GRANTED, sent(shipped.cluster)) == []
    assert rights.beyond(GRANTED, sent(shipped.cluster)) == []
    assert [entry for entry in sent(shipped.cluster) if entry.code == 403] == []
    assert installation.refused(shipped.cluster) == []
    assert dispatched(shipped.cluster) > 0


def dispatched(cluster: Cluster) -> float:
    """Return how many requests the API server served at our own priority level, not at the shared one."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    head = "apiserver_flowcontrol_dispatched_requests_total{"
    ours = 'flow_schema="gpu-scheduler",priority_level="gpu-scheduler"'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(head) and ours in line)


def use_every_right(stage: Stage, proxy: Proxy) -> None:
    """Cause every read and write of the scheduler, including those after lost answers and on old servers."""
    (node,) = stage.gpu_nodes(1, gpus=4)
    stage.scheduler(kubeconfig=proxy.kubeconfig, releaseSeconds=0, sweepSeconds=1, onUnhealthy="Evict")
    queue = {"metadata": {"name": "all"}, "spec": {"namespaceSelector": {}}}
    head = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue"}
    stage.cluster.api.request("POST", stages.QUEUES, {**head, **queue})
    stage.create(claim("one"), claim("half", exclusivity="Shared", share=500), pod("plain", claim="one"))
    stage.create(*(pod(f"half-{n}", claim_template="half") for n in range(2)))
    stage.wait_bound()
    proxy.on("create", "pods/binding", do=DropAnswer())
    proxy.on("create", "gpuclaims", do=DropAnswer())
    proxy.on("create", "leases", do=DropAnswer())
    stage.create(pod("lost", claim_template="one"))
    stage.wait_bound("lost")
    stage.create(pod("big", gpus=9))
    first = stage.wait_event("big", "FailedScheduling: ")
    preempt(stage, proxy)
    stage.cluster.kubectl("cordon", node)
    until(lambda: len(stage.events("big")) >= 2, "another reason is reported")
    stage.cluster.kubectl("uncordon", node)
    bind_volumes(stage, node)
    stage.delete("plain", "lost")
    until(lambda: stage.claim("one")["status"]["phase"] == "Released", "the claim is free again")
    # The first reason again: it is counted in its event, and no second event is created.
    until(lambda: ("patch", "events") in {(sent.verb, sent.resource) for sent in proxy.requests}, first)
    stage.report(node, devices(4, health="Unhealthy"))
    until(lambda: "half-0" not in stage.pods(), "a pod with an unhealthy device is evicted")


def preempt(stage: Stage, proxy: Proxy) -> None:
    """Look for pods to evict for a pod that does not fit without them, nor with them."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    stage.cluster.api.request("POST", classes, {"metadata": {"name": "urgent"}, "value": 1000})
    stage.create(pod("urgent", gpus=9, priorityClassName="urgent"))
    looked = ("list", "poddisruptionbudgets")
    until(lambda: looked in {(sent.verb, sent.resource) for sent in proxy.requests}, "budgets are looked at")
    stage.delete("urgent")


def bind_volumes(stage: Stage, node: str) -> None:
    """Cause the writes to a volume that exists and to a claim whose volume is to be created."""
    api, one = stage.cluster.api, {"requests": {"storage": "1Gi"}}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    disk = {
        "storageClassName": "local",
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    api.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "disk"}, "spec": disk})
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("cloud", "disk.example")):
        made = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": name}, **made})
        wanted = {"storageClassName": name, "accessModes": ["ReadWriteOnce"], "resources": one}
        claims = "/api/v1/namespaces/work/persistentvolumeclaims"
        api.request("POST", claims, {"metadata": {"name": name}, "spec": wanted})
        mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
        stage.create(pod(name, claim_template="half", volumes=mounted))
    stage.wait_bound("local")
    written = f"{claims}/cloud"
    until(
        lambda: "annotations" in api.request("GET", written)["metadata"], "a node is selected for the claim"
    )
    stage.delete("local", "cloud")


@pytest.mark.parametrize(
    ("verb", "resource"), [("get", "secrets"), ("delete", "pods"), ("create", "pods"), ("patch", "nodes")]
)
def test_other_rights_are_refused(cluster: Cluster, verb: str, resource: str) -> None:
    stages.install(cluster)
    cluster.kubectl("apply", "-f", str(CONFIG / "role.yaml"), "-f", str(CONFIG / "role_binding.yaml"))
    asked = {"user": USER, "resourceAttributes": {"verb": verb, "resource": resource, "namespace": "default"}}
    answer = cluster.api.request(
        "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": asked}
    )
    assert answer["status"]["allowed"] is False
