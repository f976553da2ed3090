"""Nodes that fail, are deleted or fill up while they have a workload."""

from typing import Any

import pytest

from controlplane.api import ApiError, Json
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


def apart_from(labels: dict[str, str]) -> dict[str, Any]:
    rule = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}


def two_nodes_and_a_loner(site: Site, **spec: Any) -> tuple[str, str]:
    """Create a large and a small node, and on the large one a pod that wants to be alone. Return both."""
    (large,), (small,) = site.nodes(1, gpus=8, prefix="large"), site.nodes(1, gpus=4, prefix="small")
    loner = {
        "metadata": {"name": "loner", "labels": {"alone": "yes"}},
        "spec": {"nodeName": large, "containers": [{"name": "x", "image": "x"}], **spec},
    }
    site.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", loner)
    return large, small


def test_node_that_cannot_run_the_pod_is_not_chosen_again(site: Site) -> None:
    """Only the kube-scheduler knows the reason: another pod does not want this one beside it."""
    large, small = two_nodes_and_a_loner(site, affinity=apart_from({"app": "shunned"}))
    site.create("shunned", gpus=2, run_for="1h", retryPolicy=SOON)
    assert site.until("shunned", "Scheduled")["assignedNode"] == large
    moved(site, "shunned", large)
    assert (site.status("shunned")["assignedNode"], site.status("shunned")["retryCount"]) == (small, 1)


def test_kube_scheduler_chooses_for_a_pod_that_wants_to_be_apart(site: Site) -> None:
    large, small = two_nodes_and_a_loner(site)
    template = {"spec": {"affinity": apart_from({"alone": "yes"})}}
    site.create("shy", gpus=2, run_for="1h", template=template)
    status = site.until("shy", "Running")
    assert (status["assignedNode"], status["retryCount"]) == (small, 0)
    assert f"2 GPUs of {small}, chosen by the kube-scheduler" in site.event("shy", "Scheduled")
    site.create("next", gpus=8, run_for="1h")  # what was reserved on the large node is free again
    assert site.until("next", "Running")["assignedNode"] == large


def is_admitted(site: Site, pod: Json) -> bool:
    """Create the pod, and return False if the API server does not know its priority class."""
    try:
        site.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", pod)
    except ApiError as error:
        if "no PriorityClass" in str(error):
            return False
        raise
    return True


def test_preempted_workload_moves_without_spending_a_try(site: Site) -> None:
    first, second = site.nodes(2, gpus=4)
    lost = runs(site, "low", priority="low")
    above = f"above-{site.namespace}"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    site.request("POST", classes, {"metadata": {"name": above}, "value": 1_000_000})
    container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    spec = {
        "priorityClassName": above,
        "nodeSelector": {"kubernetes.io/hostname": lost},
        "containers": [container],
    }
    # The API server's admission reads classes from a watch: it may not know a new one yet.
    eventually(lambda: is_admitted(site, {"metadata": {"name": "vip"}, "spec": spec}), "the class is known")
    moved(site, "low", lost)
    site.request("DELETE", f"{classes}/{above}")
    assert "was preempted" in site.event("low", "Preempted")
    assert site.status("low")["assignedNode"] == ({first, second} - {lost}).pop()
    assert site.status("low")["retryCount"] == 0
