"""Nodes that fail, are deleted or fill up while they have a workload."""

from typing import Any

import pytest

from tests.support.operator_process import Site, eventually

pytestmark = pytest.mark.usefixtures("operator")

SOON = {"maxRetries": 5, "backoffSeconds": 1}
LEAVE_AT_ONCE = [
    {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    for taint in ("not-ready", "unreachable")
]


def runs(site: Site, name: str, **more: Any) -> str:
    template = {"spec": {"tolerations": LEAVE_AT_ONCE}}
    site.create(name, gpus=4, run_for="1h", template=template, retryPolicy=SOON, **more)
    return str(site.until(name, "Running")["assignedNode"])


def moved(site: Site, name: str, lost: str) -> None:
    def look() -> bool:
        status = site.status(name)
        return status.get("phase") == "Running" and status.get("assignedNode") != lost

    eventually(look, f"{name} runs elsewhere than on {lost}")


def test_workload_moves_when_its_node_is_not_ready(site: Site) -> None:
    site.nodes(2, gpus=4)
    lost = runs(site, "moves")
    body = {"metadata": {"annotations": {"sim.gpu-orchestrator/not-ready": "true"}}}
    site.request("PATCH", f"/api/v1/nodes/{lost}", body, content_type="application/merge-patch+json")
    moved(site, "moves", lost)
    assert lost in site.event("moves", "JobFailed", "is not ready")
    assert site.status("moves")["retryCount"] == 1


def test_workload_moves_when_its_node_is_deleted(site: Site) -> None:
    site.nodes(2, gpus=4)
    lost = runs(site, "moves")
    site.delete_node(lost)
    # As the pod collector does 40 s after the node is gone.
    site.cluster.kubectl("delete", "pods", "--all", "-n", site.namespace, "--grace-period=0", "--force")
    moved(site, "moves", lost)
    assert lost in site.event("moves", "JobFailed", "is gone")


def test_workload_moves_when_its_node_fills_up_before_the_bind(site: Site) -> None:
    """The kube-scheduler is stopped while another pod fills the chosen node."""
    scheduler = site.cluster.parts["kube-scheduler"]
    first, second = site.nodes(2, gpus=4)
    scheduler.stop()
    try:
        site.create("late", gpus=4, run_for="1h", retryPolicy=SOON)
        chosen = site.until("late", "Scheduled")["assignedNode"]
        container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
        thief = {"metadata": {"name": "thief"}, "spec": {"nodeName": chosen, "containers": [container]}}
        site.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", thief)
    finally:
        scheduler.start()
    moved(site, "late", chosen)
    assert site.status("late")["retryCount"] == 1
    assert site.status("late")["assignedNode"] == ({first, second} - {chosen}).pop()
    assert "did not take the pod for 10 s" in site.event("late", "FailedScheduling")
    eventually(lambda: len(site.jobs()) == 1, "the first Job is gone")


def test_node_that_cannot_run_the_pod_is_not_chosen_again(site: Site) -> None:
    """Only the kube-scheduler knows the reason; without a memory the operator would choose the larger node
    again and again."""
    (large,), (small,) = site.nodes(1, gpus=8, prefix="large"), site.nodes(1, gpus=4, prefix="small")
    loner = {"metadata": {"name": "loner", "labels": {"alone": "yes"}}}
    spec = {"nodeName": large, "containers": [{"name": "x", "image": "x"}]}
    site.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", {**loner, "spec": spec})
    rule = {"labelSelector": {"matchLabels": {"alone": "yes"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    site.create("shy", gpus=2, run_for="1h", template={"spec": {"affinity": affinity}}, retryPolicy=SOON)
    assert site.until("shy", "Scheduled")["assignedNode"] == large
    moved(site, "shy", large)
    assert (site.status("shy")["assignedNode"], site.status("shy")["retryCount"]) == (small, 1)


def test_preempted_workload_is_reported_and_retried(site: Site) -> None:
    first, second = site.nodes(2, gpus=4)
    lost = runs(site, "low", priority="low")
    container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    preempting = f"preempting-{site.namespace}"  # gpu-high does not
    site.cluster.kubectl("create", "priorityclass", preempting, "--value=100000")
    spec = {
        "priorityClassName": preempting,
        "nodeSelector": {"kubernetes.io/hostname": lost},
        "containers": [container],
    }
    site.request(
        "POST", f"/api/v1/namespaces/{site.namespace}/pods", {"metadata": {"name": "vip"}, "spec": spec}
    )
    moved(site, "low", lost)
    assert "was preempted" in site.event("low", "Preempted")
    assert site.status("low")["assignedNode"] == ({first, second} - {lost}).pop()
