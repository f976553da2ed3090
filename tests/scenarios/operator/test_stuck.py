"""Jobs that do not start, Jobs that are not ours, and pods whose node only the kube-scheduler can choose."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.cluster import Cluster
from tests.support.operator_process import ZONE, Site, eventually
from tests.support.scale import Scale

pytestmark = pytest.mark.usefixtures("operator")

MERGE = "application/merge-patch+json"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PATIENT = {"maxRetries": 10, "backoffSeconds": 300}
WAITS = {"podless_s": 12}
"""Of the operator, in `make test`. Longer than Kubernetes needs for a pod on a busy machine."""


@pytest.fixture
def other_site(operator_cluster: Cluster) -> Iterator[Site]:
    made = Site(operator_cluster)
    yield made
    made.close()


@pytest.fixture
def counted_site(operator_cluster: Cluster) -> Iterator[Site]:
    """Yield a namespace whose quota admits no whole GPU by claim."""
    made = Site(operator_cluster)
    made.limit("gpus", {"requests.gpu.scheduling/milligpu": "999"})
    yield made
    made.close()


def change_job(site: Site, name: str, spec: dict[str, Any]) -> None:
    path = f"/apis/batch/v1/namespaces/{site.namespace}/jobs/{name}"
    site.request("PATCH", path, {"spec": spec}, content_type=MERGE)


def test_jobs_without_pods_do_not_keep_gpus_from_others(
    site: Site, other_site: Site, counted_site: Site, scale: Scale
) -> None:
    """In one namespace a quota lets no pod start; the workload of another namespace must get the node. In a
    third one, the quota is on claimed GPUs and its reason reaches the workload in the same way."""
    site.nodes(1, gpus=4)
    other_site.limit("none", {"pods": "0"})
    counted_site.create("exact", claim={}, retryPolicy=PATIENT)
    other_site.create("greedy", gpus=4, run_for="1h", retryPolicy=PATIENT)
    other_site.until("greedy", "Scheduled")
    site.create("fair", gpus=4, run_for="1h", retryPolicy=PATIENT)
    site.until("fair", "Running", timeout_s=120)  # after the time that the other Job has
    status = other_site.until("greedy", "Pending")
    assert status["retryCount"] == 1
    assert f"created no pod for {scale(test=WAITS['podless_s'], accept=30)} s" in status["message"]
    assert "exceeded quota: none" in status["message"]
    assert "exceeded quota: none" in other_site.event("greedy", "FailedScheduling")
    eventually(lambda: not other_site.jobs(), "the Job is gone")
    status = counted_site.until("exact", "Pending")
    assert (status["retryCount"], counted_site.pods()) == (1, [])
    assert "exceeded quota: gpus, requested: requests.gpu.scheduling/milligpu=1k" in status["message"]


@pytest.mark.parametrize("owned", [False, True], ids=["without owner", "with a made-up owner"])
def test_forged_job_holds_no_gpus(site: Site, owned: bool) -> None:
    (node,) = site.nodes(1, gpus=4)
    container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    pod = {"restartPolicy": "Never", "containers": [container], "affinity": {"nodeAffinity": required}}
    owner = {"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "controller": True}
    gone = {**owner, "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}
    labels = {"gpu.warp.dev/controller": "gpu-orchestrator"}
    forged = {
        # A finalizer keeps the garbage collector from removing the one without a living owner.
        "metadata": {
            "name": "forged",
            "labels": labels,
            "ownerReferences": [gone] if owned else [],
            "finalizers": ["example.com/stays"],
        },
        "spec": {"suspend": True, "template": {"spec": pod}},
    }
    site.request("POST", f"/apis/batch/v1/namespaces/{site.namespace}/jobs", forged)
    try:
        site.create("honest", gpus=4, run_for="100ms", retryPolicy=PATIENT)
        assert site.until("honest", "Succeeded")["retryCount"] == 0
    finally:
        path = f"/apis/batch/v1/namespaces/{site.namespace}/jobs/forged"
        site.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)


def test_job_suspended_by_others_holds_and_costs_nothing(site: Site) -> None:
    site.nodes(1, gpus=4)
    site.create("queued", gpus=4, run_for="1h")
    name = site.until("queued", "Running")["jobName"]
    change_job(site, name, {"suspend": True})
    status = site.until("queued", "Pending")
    assert "is suspended, not by this operator" in status["message"]
    assert (status["retryCount"], status["jobName"]) == (0, name)
    site.create("other", gpus=4, run_for="100ms")
    site.until("other", "Succeeded")
    change_job(site, name, {"suspend": False})
    assert site.until("queued", "Running")["retryCount"] == 0


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
def test_workload_runs_where_its_volume_is(site: Site, mode: str) -> None:
    """The volume is in the zone whose node every strategy likes least."""
    for zone, gpus in (("a", 8), ("b", 8), ("c", 4)):
        site.nodes(1, prefix=zone, gpus=gpus, labels={ZONE: f"{site.namespace}-{zone}"})
    mounted = site.volume("data", mode=mode, zone=f"{site.namespace}-c")
    spec = {"volumes": [mounted], "containers": [{"name": "main", "image": "x"}]}
    site.create("reader", gpus=1, run_for="1h", template={"spec": spec})
    status = site.until("reader", "Running")
    assert (status["assignedNode"], status["retryCount"]) == (f"{site.namespace}-c-0", 0)


@contextmanager
def high_priority_preempts(site: Site) -> Iterator[None]:
    """Let the PriorityClass gpu-high preempt, whatever is shipped; its policy cannot be changed in place."""
    shipped = site.request("GET", f"{CLASSES}/gpu-high")
    plain: dict[str, Any] = {
        key: shipped[key] for key in ("value", "preemptionPolicy", "description") if key in shipped
    }
    try:
        _replace(site, {**plain, "preemptionPolicy": "PreemptLowerPriority"})
        yield
    finally:
        _replace(site, plain)


def _replace(site: Site, body: dict[str, Any]) -> None:
    site.request("DELETE", f"{CLASSES}/gpu-high")
    site.request("POST", CLASSES, {"metadata": {"name": "gpu-high"}, **body})


def test_preemptor_waits_for_its_victims_without_spending_a_try(site: Site) -> None:
    """While the kube-scheduler is stopped, a pod of low priority takes the chosen node; it ends slowly."""
    scheduler = site.cluster.parts["kube-scheduler"]
    (node,) = site.nodes(1, gpus=4)
    pods = f"/api/v1/namespaces/{site.namespace}/pods"
    container = {"name": "x", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    thief = {
        "metadata": {"name": "thief", "finalizers": ["example.com/slow"]},
        "spec": {"nodeName": node, "containers": [container]},
    }
    site.allow_high_priority()
    with high_priority_preempts(site):
        scheduler.stop()
        try:
            site.create("vip", gpus=4, run_for="1h", priority="high")
            job = site.until("vip", "Scheduled")["jobName"]
            site.request("POST", pods, thief)
        finally:
            scheduler.start()
        nominated = eventually(lambda: _nominated(site), "the kube-scheduler evicts the thief")
        eventually(lambda: _age_s(nominated) > 13, "longer than an unschedulable pod may wait")
        assert site.status("vip")["jobName"] == job
        site.request("PATCH", f"{pods}/thief", {"metadata": {"finalizers": None}}, content_type=MERGE)
        status = site.until("vip", "Running")
    assert (status["retryCount"], status["jobName"]) == (0, job)


def _nominated(site: Site) -> dict[str, Any] | None:
    waiting = site.pods("app=vip")
    return next((pod for pod in waiting if pod["status"].get("nominatedNodeName")), None)


def _age_s(pod: dict[str, Any]) -> float:
    """Return how long a pod has been unschedulable."""
    conditions = pod["status"]["conditions"]
    since = next(each["lastTransitionTime"] for each in conditions if each["type"] == "PodScheduled")
    return (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
