"""Claimed workloads on a real control plane: the operator creates Jobs, the gpu-scheduler allocates devices,
both under their shipped ServiceAccounts."""

from typing import Any

import pytest

from tests.support import installation
from tests.support.operator_process import FINAL, Json, Operator, Site, eventually
from tests.support.paths import ROOT
from tests.support.scheduler_stage import CLAIMS, SYSTEM

pytestmark = pytest.mark.usefixtures("operator", "scheduler")

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases?labelSelector=gpu.scheduling/managed=true"
PACKED: Json = {"devices": {"policy": "packed"}}
SOON = {"maxRetries": 2, "backoffSeconds": 1}


def claims(site: Site) -> list[Json]:
    items: list[Json] = site.request("GET", CLAIMS.format(site.namespace))["items"]
    return items


def leases(site: Site) -> list[str]:
    """Return the leases of this site's devices that are held."""
    found = [each["metadata"]["name"] for each in site.request("GET", LEASES)["items"]]
    return [name for name in found if name.startswith(f"gpu-{site.namespace}-")]


def nothing_left(site: Site) -> None:
    """Wait until all is gone, including objects that the garbage collector or the scheduler removes."""
    eventually(lambda: not site.jobs() and not site.pods(), "Job and pods are gone")
    eventually(lambda: not claims(site), "the claims are gone")
    eventually(lambda: not leases(site), "the devices are free")


def test_example_gets_connected_devices_and_succeeds(site: Site, operator: Operator) -> None:
    (node,) = site.nodes(1, gpus=8, islands=((0, 2, 4, 6), (1, 3, 5, 7)))
    before = operator.metrics()
    site.cluster.kubectl(
        "apply", "-n", site.namespace, "-f", str(ROOT / "examples" / "gpuworkload-claimed.yaml")
    )
    status = site.until("claimed-model", "Scheduled", "Running", *FINAL)
    assert status["assignedNode"] == node
    assert status["jobName"].startswith("claimed-model-job-")
    (pod,) = site.pods("app=llama3-70b")
    assert pod["metadata"]["annotations"]["gpu.scheduling/allocated"] in (
        f"{node}:0,2,4,6",
        f"{node}:1,3,5,7",
    )
    assert pod["spec"]["schedulerName"] == "gpu-scheduler"
    status = site.until("claimed-model", *FINAL)
    assert (status["phase"], status["retryCount"], status["assignedNode"]) == ("Succeeded", 0, node)
    assert status["allocated"] == pod["metadata"]["annotations"]["gpu.scheduling/allocated"]
    ids = [int(each) for each in status["allocated"].rpartition(":")[2].split(",")]
    assert status["devices"] == [{"index": each, "model": "NVIDIA-A100-SXM4-80GB"} for each in ids]
    wide = site.cluster.kubectl("get", "gpuw", "-n", site.namespace, "-o", "wide")
    assert status["allocated"] in wide.split()
    named = f"4 GPUs of {node} (devices {','.join(map(str, ids))}), chosen by topology"
    assert site.event("claimed-model", "Scheduled") == named
    site.event("claimed-model", "JobSucceeded")
    assert {reason for reason, _ in site.events("claimed-model")} == {
        "Scheduled",
        "JobCreated",
        "JobSucceeded",
    }
    counted = 'warp_gpuworkload_scheduled_total{strategy="topology"}'
    assert operator.metrics()[counted] - before.get(counted, 0) == 1
    template, child = sorted(claims(site), key=lambda each: len(each["metadata"].get("finalizers", [])))
    assert template["spec"] == child["spec"]
    site.delete("claimed-model")
    site.gone("claimed-model")
    nothing_left(site)


def test_waiting_workload_shows_the_schedulers_reason_and_keeps_its_job(site: Site) -> None:
    (node,) = site.nodes(1, gpus=4)
    site.create("first", gpus=3, run_for="1h", claim=PACKED)
    assert "(devices 0,1,2)" in site.until("first", "Running")["message"]
    assert len(leases(site)) == 3
    site.create("second", gpus=2, run_for="1h", claim=PACKED, retryPolicy={"backoffSeconds": 300})
    waiting = site.until("second", "Pending")
    assert waiting["message"] == "0/1 nodes fit: 1 has fewer than 2 free GPUs"
    assert (waiting["retryCount"], waiting.get("assignedNode")) == (1, None)
    site.event("second", "FailedScheduling", "fewer than 2 free GPUs")
    job = next(each for each in site.jobs() if each["metadata"]["name"] == waiting["jobName"])
    site.delete("first")
    running = site.until("second", "Running")
    assert (running["retryCount"], running["assignedNode"]) == (1, node)  # only the try of its creation
    assert job["metadata"]["uid"] in {each["metadata"]["uid"] for each in site.jobs()}


def test_unschedulable_workload_fails_after_its_retries_and_holds_nothing(site: Site) -> None:
    site.nodes(1, gpus=4)
    site.create("big", gpus=8, claim=PACKED, retryPolicy=SOON)
    status = site.until("big", "Failed")
    assert status["retryCount"] == 2
    assert "0/1 nodes fit" in status["message"]
    site.event("big", "MaxRetriesExceeded")
    eventually(lambda: not site.jobs() and not site.pods(), "its Job is gone")


def test_failed_job_is_retried_and_releases_its_devices(site: Site) -> None:
    site.nodes(1, gpus=1)
    site.create("flaky", run_for="100ms", outcome="fail", claim=PACKED, retryPolicy=SOON)
    status = site.until("flaky", "Failed")
    assert status["retryCount"] == 2
    assert "container main ended with exit code 1" in site.event("flaky", "JobFailed")
    assert len({each["metadata"]["name"] for each in site.jobs()}) == 2
    eventually(lambda: not leases(site), "the device is free")


def test_runtime_limit_fails_the_workload_without_retry(site: Site) -> None:
    """These nodes have no kubelet, so the test itself ends the pod after its deadline."""
    site.nodes(1, gpus=1)
    site.create("slow", run_for="1h", claim=PACKED, maxRuntimeSeconds=60)
    site.until("slow", "Running")
    (pod,) = site.pods()
    assert pod["spec"]["activeDeadlineSeconds"] == 60
    site.end("slow", "Failed", reason="DeadlineExceeded")
    status = site.until("slow", "Failed")
    assert "longer than maxRuntimeSeconds (60)" in status["message"]
    assert status["retryCount"] == 0


def test_claim_changed_while_pending_is_scheduled_again(site: Site) -> None:
    (node,) = site.nodes(1, gpus=4)
    nowhere = {"selector": {"matchLabels": {"zone": "none"}}}
    site.create("picky", gpus=2, run_for="1h", claim=nowhere, retryPolicy={"backoffSeconds": 300})
    assert "do not match the selector zone=none" in _plural(site.until("picky", "Pending")["message"])
    site.patch("picky", {"claim": {"selector": {"matchLabels": {"zone": None}}}})
    assert site.until("picky", "Running")["assignedNode"] == node
    assert len(site.jobs()) == 1


def _plural(message: str) -> str:
    return message.replace("does not match", "do not match")


def test_suspended_workload_releases_its_devices_and_resumes(site: Site) -> None:
    site.nodes(1, gpus=1)
    site.create("paused", run_for="1h", claim=PACKED)
    site.until("paused", "Running")
    site.patch("paused", {"suspend": True})
    site.until("paused", "Pending")
    eventually(lambda: not site.pods() and not leases(site), "it holds nothing")
    site.patch("paused", {"suspend": False})
    assert site.until("paused", "Running")["retryCount"] == 0
    site.delete("paused")
    site.gone("paused")
    nothing_left(site)


@pytest.mark.parametrize(
    ("phase", "spec"),
    [
        ("Pending", {"gpus": 8}),
        ("Scheduling", {"template": {"spec": {"schedulingGates": [{"name": "example.com/later"}]}}}),
        ("Succeeded", {"run_for": "100ms"}),
    ],
)
def test_delete_in_any_phase_leaves_nothing(site: Site, phase: str, spec: dict[str, Any]) -> None:
    site.nodes(1, gpus=4)
    site.create("doomed", claim=PACKED, **spec)
    site.until("doomed", phase)
    site.delete("doomed")
    site.gone("doomed")
    nothing_left(site)


def test_plain_and_claimed_workloads_use_different_nodes(site: Site) -> None:
    first, second = site.nodes(2, gpus=4)
    site.create("exact", run_for="1h", claim={"selector": {"matchLabels": {"kubernetes.io/hostname": first}}})
    site.until("exact", "Running")
    site.create("plain", gpus=3, run_for="1h")
    assert site.until("plain", "Running")["assignedNode"] == second
    site.create("late", gpus=3)
    message = site.until("late", "Pending")["message"]
    assert "1 has GPUs claimed through the gpu-scheduler, which plain workloads keep away from" in message
    site.create("other", claim={"selector": {"matchLabels": {"kubernetes.io/hostname": second}}})
    assert "device plugin" in site.until("other", "Pending")["message"]


def test_spec_that_contradicts_the_claim_is_reported(site: Site) -> None:
    installation.open_up(site.cluster, site.namespace)  # else the webhook says it first
    main = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    site.create("both", claim=PACKED, template={"spec": {"containers": [main]}})
    assert "asks for nvidia.com/gpu; leave it out" in site.until("both", "Failed")["message"]


def test_replicas_start_together_and_succeed(site: Site) -> None:
    """Two of three replicas fit: none starts. A node more, and all do."""
    first, second = site.nodes(2, gpus=2)
    site.create("gang", gpus=2, replicas=3, run_for="2s", retryPolicy={"onNoCapacity": "Wait"})
    waits = eventually(
        lambda: _said(site, "gang", "2 of 3 members fit together"), "the gang says why it waits"
    )
    assert waits["retryCount"] == 0
    assert not any(pod["spec"].get("nodeName") for pod in site.pods())
    (third,) = site.nodes(1, gpus=2, prefix=f"{site.namespace}-third")
    status = site.until("gang", "Running", *FINAL)
    assert sorted(status["assignedNodes"]) == sorted([first, second, third])
    assert status["assignedNode"] == status["assignedNodes"][0]
    assert site.event("gang", "Scheduled").startswith("3 times 2 GPUs of ")
    status = site.until("gang", *FINAL)
    assert (status["phase"], len(status["assignedNodes"])) == ("Succeeded", 3)
    site.delete("gang")
    site.gone("gang")
    nothing_left(site)


def test_failed_replica_ends_all_and_the_gang_is_tried_again(site: Site) -> None:
    site.nodes(2, gpus=1)
    site.create("gang", gpus=1, replicas=2, outcome="fail", retryPolicy=SOON)
    status = site.until("gang", *FINAL)
    assert (status["phase"], status["retryCount"]) == ("Failed", 2)
    assert len({job["metadata"]["name"] for job in site.jobs()}) <= 3
    site.delete("gang")
    site.gone("gang")
    nothing_left(site)


def _said(site: Site, name: str, text: str) -> Json | None:
    status = site.status(name)
    return status if text in status.get("message", "") else None
