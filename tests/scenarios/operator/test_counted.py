"""What Kubernetes counts of claimed workloads, and which nodes serve them: ResourceQuota, the kube-scheduler
whose plugins the cluster-autoscaler simulates with, and the label that keeps nodes for one kind of pods."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import autoscaler_rules
from tests.support.operator_process import Json, Site, eventually

pytestmark = pytest.mark.usefixtures("operator", "scheduler")

MODE, MILLIGPU = "gpu.scheduling/mode", "gpu.scheduling/milligpu"
PATIENT = {"backoffSeconds": 300}
# Exempt from the policies that forbid others to request what we count.
EXEMPT = "/api/v1/namespaces/kube-system/pods"


def claim_on(node: str) -> Json:
    return {"selector": {"matchLabels": {"kubernetes.io/hostname": node}}}


def test_quota_admits_two_claimed_gpus_and_not_three(site: Site) -> None:
    site.nodes(1, gpus=4)
    site.limit("gpus", {f"requests.{MILLIGPU}": "2000"})
    for name in ("first", "second"):
        site.create(name, run_for="1h", claim={})
        site.until(name, "Running")
    site.create("third", run_for="1h", claim={})
    job = site.until("third", "Scheduling")["jobName"]
    said = site.event(job, "FailedCreate", "exceeded quota: gpus")
    assert f"requested: requests.{MILLIGPU}=1k, used: requests.{MILLIGPU}=2k" in said
    assert len(site.pods()) == 2
    status = site.request("GET", f"/api/v1/namespaces/{site.namespace}/resourcequotas/gpus")["status"]
    assert status["used"] == {f"requests.{MILLIGPU}": "2k"}


def test_labelled_nodes_serve_one_kind(site: Site) -> None:
    (claims,) = site.nodes(1, gpus=4, prefix="claims", labels={MODE: "claims"})
    (plugin,) = site.nodes(1, gpus=2, prefix="plugin", labels={MODE: "plugin"})
    site.create("plain", gpus=1, run_for="1h")
    site.create("exact", gpus=1, run_for="1h", claim={})
    assert site.until("plain", "Running")["assignedNode"] == plugin
    assert site.until("exact", "Running")["assignedNode"] == claims
    site.create("large", gpus=4, run_for="1h", retryPolicy=PATIENT)
    assert f"1 is kept for claims (label {MODE})" in site.until("large", "Pending")["message"]
    site.create("lost", claim=claim_on(plugin), retryPolicy=PATIENT)
    assert f"1 is kept for a device plugin (label {MODE})" in site.until("lost", "Pending")["message"]
    assert MILLIGPU not in site.request("GET", f"/api/v1/nodes/{plugin}")["status"]["allocatable"]


def test_kube_scheduler_sees_where_claimed_pods_fit(site: Site) -> None:
    """The cluster-autoscaler asks the plugins of kube-scheduler: whether a waiting pod fits on a node that is
    there (then it adds none) or on a new one, and whether the pods of a node fit elsewhere (only then it
    removes the node). Here the kube-scheduler itself answers, about copies of our pods."""
    (node,) = site.nodes(1, gpus=2)
    shows(site, node, "2k")
    site.create("runs", gpus=2, run_for="1h", claim={})
    site.until("runs", "Running")
    site.create("waits", gpus=2, run_for="1h", claim={}, retryPolicy={"onNoCapacity": "Wait"})
    site.until("waits", "Pending")
    (running,), (waiting,) = site.pods("app=runs"), site.pods("app=waits")
    said = next(each for each in waiting["status"]["conditions"] if each["type"] == "PodScheduled")
    assert (said["status"], said["reason"]) == ("False", "Unschedulable")  # what the autoscaler looks for
    assert running["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    described = site.cluster.kubectl("describe", "node", node)
    assert [MILLIGPU, "2k", "2k"] in [line.split() for line in described.splitlines()]
    with copied(site, waiting) as path:
        refused = eventually(lambda: scheduled(site, path, "False"), "kube-scheduler refuses the copy")
        assert f"Insufficient {MILLIGPU}" in refused["message"]
        (added,) = site.nodes(1, gpus=4, prefix="added")
        eventually(lambda: scheduled(site, path, "True"), "the copy fits on the new node")
        assert site.request("GET", path)["spec"]["nodeName"] == added
        assert site.until("waits", "Running")["assignedNode"] == added


def test_autoscaler_keeps_the_node_of_a_claimed_pod_and_adds_one_for_a_pod_that_waits(site: Site) -> None:
    """Of pods that a person wrote, not of a GPUWorkload. They have an owner: the autoscaler never removes a
    pod that nobody would create again."""
    (name,) = site.nodes(1, gpus=2)
    shows(site, name, "2k")
    replicated(site, "runs", {})
    running = eventually(lambda: only(site, "runs", "nodeName"), "the pod is bound")
    replicated(site, "waits", {autoscaler_rules.SAFE_TO_EVICT: "true"})
    waiting = eventually(lambda: refused(site, "waits"), "it waits for a node")
    node = site.request("GET", f"/api/v1/nodes/{name}")
    assert autoscaler_rules.is_used_little(node, [running], "nvidia.com/gpu"), "only its pods keep it"
    assert autoscaler_rules.obstacle(running) == "it is not safe to evict"
    assert autoscaler_rules.is_reason_to_grow(waiting)
    assert not autoscaler_rules.fits(waiting, node, [running])
    assert autoscaler_rules.fits(waiting, node, []), "a new node would help"
    assert not autoscaler_rules.is_reason_to_grow(running)
    assert autoscaler_rules.obstacle(waiting) == "", "its author has the last word"


def replicated(site: Site, name: str, annotations: dict[str, str]) -> None:
    """Create a ReplicaSet of one pod that asks for two GPUs and says nothing more about them."""
    meta = {"labels": {"app": name}, "annotations": {"gpu.scheduling/gpus": "2", **annotations}}
    asks = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "train"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": asks}
    path = f"/apis/apps/v1/namespaces/{site.namespace}/replicasets"
    site.request("POST", path, {"metadata": {"name": name}, "spec": spec})


def only(site: Site, app: str, field: str) -> Json | None:
    """Return the pod of this ReplicaSet once its spec has this field."""
    return next((each for each in site.pods(f"app={app}") if field in each["spec"]), None)


def refused(site: Site, app: str) -> Json | None:
    """Return the pod of this ReplicaSet once a scheduler has said that it fits nowhere."""
    said = [
        each
        for each in site.pods(f"app={app}")
        if any(one["type"] == "PodScheduled" for one in each["status"].get("conditions", []))
    ]
    return next(iter(said), None)


def shows(site: Site, node: str, amount: str) -> None:
    """Wait until the node's status shows its capacity; the gpu-scheduler writes it."""

    def look() -> bool:
        status = site.request("GET", f"/api/v1/nodes/{node}")["status"]
        return all(status[kind].get(MILLIGPU) == amount for kind in ("capacity", "allocatable"))

    eventually(look, f"{node} shows {amount} {MILLIGPU}")


def scheduled(site: Site, path: str, status: str) -> Json | None:
    conditions: list[Json] = site.request("GET", path)["status"].get("conditions", [])
    wanted = ("PodScheduled", status)
    return next((each for each in conditions if (each["type"], each["status"]) == wanted), None)


@contextmanager
def copied(site: Site, pod: Json) -> Iterator[str]:
    """Give the kube-scheduler a pod that needs the same, and yield its path."""
    asks: dict[str, Any] = {
        "containers": [
            {"name": each["name"], "image": "x", "resources": each["resources"]}
            for each in pod["spec"]["containers"]
        ],
        "tolerations": pod["spec"]["tolerations"],
    }
    path = f"{EXEMPT}/{site.namespace}"
    site.request("POST", EXEMPT, {"metadata": {"name": site.namespace}, "spec": asks})
    try:
        yield path
    finally:
        site.request("DELETE", path, {"gracePeriodSeconds": 0})
