"""The life cycle of workloads on a real control plane, with the operator under its shipped ServiceAccount."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.api import ApiError
from gpu_orchestrator.policies.registry import STRATEGIES
from tests.support import installation
from tests.support.operator_process import FINAL, WORKLOADS, Operator, Site, eventually
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("operator")
SAMPLES = ROOT / "examples" / "gpuworkload-sample.yaml"


def apply(site: Site, file: Path) -> list[str]:
    site.cluster.kubectl("apply", "-n", site.namespace, "-f", str(file))
    return [each["metadata"]["name"] for each in yaml.safe_load_all(file.read_text()) if each]


def test_samples_run_and_succeed(site: Site, operator: Operator, figure: Callable[[str], None]) -> None:
    site.nodes(3)
    before = operator.metrics()
    names = apply(site, SAMPLES)
    started = time.monotonic()
    for name in names:
        status = site.until(name, "Scheduled", "Running", *FINAL)
        assert status["assignedNode"]
        assert status["jobName"].startswith(f"{name}-job-")
    figure(f"all three Scheduled {time.monotonic() - started:.2f} s after they were applied (spec: 1 s)")
    for name in names:
        site.until(name, "Running", *FINAL)
        status = site.until(name, *FINAL)
        assert status["phase"] == "Succeeded"
        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "Scheduled": "True",
            "Running": "False",
            "Complete": "True",
        }
        site.event(name, "JobSucceeded")
        assert {"Scheduled", "JobCreated", "JobSucceeded"} == {reason for reason, _ in site.events(name)}
    after = operator.metrics()
    for strategy in ("leastLoaded", "costOptimized", "random"):
        name = f'warp_gpuworkload_scheduled_total{{strategy="{strategy}"}}'
        assert after[name] - before.get(name, 0) == 1


def test_kubectl_shows_columns_and_events(site: Site) -> None:
    site.nodes(1)
    site.allow_high_priority()
    site.create("bert", modelName="google/BERT-large", gpus=2, priority="high")
    site.until("bert", "Succeeded")
    table = site.cluster.kubectl("get", "gpuw", "-n", site.namespace).splitlines()
    assert table[0].split() == ["NAME", "MODEL", "GPUS", "PHASE", "NODE", "AGE"]
    assert table[1].split()[:4] == ["bert", "google/BERT-large", "2", "Succeeded"]
    wide = site.cluster.kubectl("get", "gpuw", "-n", site.namespace, "-o", "wide").splitlines()
    assert wide[0].split()[6:] == ["DEVICES", "STRATEGY", "PRIORITY", "RETRIES", "MESSAGE"]
    assert wide[1].split()[6:9] == ["leastLoaded", "high", "0"]
    site.event("bert", "JobSucceeded")
    described = site.cluster.kubectl("describe", "gpuw", "bert", "-n", site.namespace)
    assert "JobCreated" in described
    (pod,) = site.pods("app=google-BERT-large")
    assert pod["spec"]["priorityClassName"] == "gpu-high"
    env = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    assert (env["MODEL_NAME"], env["GPU_COUNT"]) == ("google/BERT-large", "2")


def test_free_gpus_exclude_those_of_running_pods(site: Site, figure: Callable[[str], None]) -> None:
    site.nodes(2, gpus=4)
    for name in ("one", "two"):
        site.create(name, gpus=4, run_for="1h")
    nodes = {site.until(name, "Running")["assignedNode"] for name in ("one", "two")}
    assert len(nodes) == 2
    site.create("three", gpus=4)
    waiting = eventually(lambda: (s := site.status("three")) and s.get("message") and s, "three was refused")
    assert waiting["message"] == "0/2 nodes fit: 2 have fewer than 4 free GPUs"
    assert (waiting["phase"], waiting["retryCount"]) == ("Pending", 1)
    site.end("one")
    site.until("one", "Succeeded")
    ended = time.monotonic()
    status = site.until("three", "Scheduled", "Running", *FINAL)
    figure(f"the third was placed {time.monotonic() - ended:.2f} s after the first had ended (spec: 2 s)")
    assert status["retryCount"] == 1  # only the try of its creation
    site.until("three", "Succeeded")


def test_pods_of_other_controllers_count_too(site: Site) -> None:
    (node,) = site.nodes(1, gpus=4)
    limits = {"nvidia.com/gpu": "3"}
    container = {"name": "x", "image": "x", "resources": {"limits": limits}}
    body = {"metadata": {"name": "other"}, "spec": {"nodeName": node, "containers": [container]}}
    site.request("POST", f"/api/v1/namespaces/{site.namespace}/pods", body)
    # Pods and workloads come through two watches, in any order. Wait until the operator has seen the pod.
    eventually(lambda: site.pods()[0]["status"].get("phase") == "Running", "the other pod runs")
    site.create("two", gpus=2)
    assert site.until("two", "Pending")["message"] == "0/1 nodes fit: 1 has fewer than 2 free GPUs"
    site.request("DELETE", f"/api/v1/namespaces/{site.namespace}/pods/other")
    site.until("two", "Succeeded")


def test_cost_optimized_prefers_cheap_nodes_and_falls_back(site: Site) -> None:
    (dear,) = site.nodes(1, gpus=4, prefix="dear")
    (cheap,) = site.nodes(1, gpus=4, prefix="z-cheap", labels={"gpu-orchestrator/cheap-node": "true"})
    for name, expected in (("first", cheap), ("second", dear)):
        site.create(name, gpus=4, run_for="1h", schedulingStrategy="costOptimized")
        assert site.until(name, "Running")["assignedNode"] == expected


def test_least_loaded_spreads_workloads(site: Site) -> None:
    nodes = site.nodes(3, gpus=4)
    for number in range(6):
        site.create(f"w{number}", run_for="1h")
    chosen = [site.until(f"w{number}", "Running")["assignedNode"] for number in range(6)]
    assert {node: chosen.count(node) for node in nodes} == dict.fromkeys(nodes, 2)


def test_new_node_wakes_pending_workloads(site: Site) -> None:
    site.create("early", retryPolicy={"maxRetries": 3, "backoffSeconds": 300})
    assert site.until("early", "Pending")["message"] == "0/0 nodes fit: there are no nodes"
    site.nodes(1)
    site.until("early", "Succeeded")  # long before its backoff is over


def test_unschedulable_workload_fails_after_its_retries(site: Site) -> None:
    site.nodes(1, gpus=4)
    site.create("big", gpus=8, retryPolicy={"maxRetries": 2, "backoffSeconds": 1})
    status = site.until("big", "Failed")
    assert status["retryCount"] == 2
    assert "waiting does not help: no node of this cluster could run it, even if empty" in status["message"]
    assert ("False", "MaxRetriesExceeded") in {(c["status"], c["reason"]) for c in status["conditions"]}
    site.event("big", "MaxRetriesExceeded")
    site.event("big", "Retrying", "try 2 of 2")
    site.cluster.kubectl("wait", "gpuw/big", "-n", site.namespace, "--for=condition=Failed", "--timeout=30s")


def test_workload_that_waits_for_room_spends_no_try(site: Site) -> None:
    site.nodes(1, gpus=4)
    once = {"maxRetries": 1, "backoffSeconds": 1, "onNoCapacity": "Wait"}
    site.create("first", gpus=4, run_for="1h")
    site.until("first", "Running")
    site.create("patient", gpus=4, run_for="100ms", retryPolicy=once)
    status = site.until("patient", "Pending")
    assert (status["retryCount"], "nextRetryTime" in status) == (0, False)
    assert site.event("patient", "FailedScheduling") == status["message"]
    site.end("first")
    assert site.until("patient", *FINAL)["phase"] == "Succeeded"


def test_job_and_pods_have_the_workloads_labels(site: Site) -> None:
    site.nodes(1)
    labels = {"team": "vision", "kueue.x-k8s.io/queue-name": "gpus", "gpu.warp.dev/controller": "forged"}
    annotations = {"example.com/cost-centre": "42", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    body = {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "tagged", "labels": labels, "annotations": annotations},
        "spec": {"modelName": "tagged", "gpuCount": 1},
    }
    site.request("POST", WORKLOADS.format(site.namespace), body)
    site.until("tagged", "Succeeded")
    (job,), (pod,) = site.jobs(), site.pods("app=tagged")
    assert job["metadata"]["labels"].items() >= {
        ("team", "vision"),
        ("kueue.x-k8s.io/queue-name", "gpus"),
        ("gpu.warp.dev/controller", "gpu-orchestrator"),
    }
    assert job["metadata"]["annotations"]["example.com/cost-centre"] == "42"
    assert not any(name.startswith("kubectl") for name in job["metadata"]["annotations"])
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert "kueue.x-k8s.io/queue-name" not in pod["metadata"]["labels"]


def test_changed_time_limit_reaches_the_running_job(site: Site) -> None:
    site.nodes(1)
    site.create("slow", run_for="1h")
    site.until("slow", "Running")
    site.allow_high_priority()
    site.patch("slow", {"maxRuntimeSeconds": 1, "priority": "high"})
    assert "priority" in site.event("slow", "SpecChanged")
    assert "longer than maxRuntimeSeconds (1)" in site.until("slow", "Failed")["message"]


def test_failed_job_is_retried_on_another_node(site: Site) -> None:
    nodes = site.nodes(2)
    site.create("flaky", run_for="100ms", outcome="fail", retryPolicy={"maxRetries": 2, "backoffSeconds": 1})
    status = site.until("flaky", "Failed")
    assert status["retryCount"] == 2
    chosen = {job["metadata"]["name"]: _node(job) for job in site.jobs()}
    assert len(chosen) == 2
    assert set(chosen.values()) == set(nodes)
    assert {name.rpartition("-")[2] for name in chosen} > {"r1"}
    assert "container main ended with exit code 1 (Error)" in site.event("flaky", "JobFailed")


def _node(job: dict[str, object]) -> str:
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]  # type: ignore[index]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def test_finished_workload_stays_finished_after_its_job_is_gone(site: Site) -> None:
    site.nodes(1)
    site.create("short", run_for="100ms", ttlSecondsAfterFinished=0)
    done = site.until("short", "Succeeded")
    eventually(lambda: not site.jobs(), "the Job was removed by its TTL")
    site.patch("short", {"retryPolicy": {"maxRetries": 7}})  # triggers a reconcile
    site.create("next", run_for="100ms")
    site.until("next", "Succeeded")
    assert site.status("short") == done


def test_runtime_limit_fails_the_workload_without_retry(site: Site) -> None:
    site.nodes(1)
    site.create("slow", run_for="1h", maxRuntimeSeconds=1)
    status = site.until("slow", "Failed")
    assert "longer than maxRuntimeSeconds (1)" in status["message"]
    assert status["retryCount"] == 0


def test_suspended_workload_holds_nothing_and_resume_places_it_again(site: Site) -> None:
    site.nodes(1, gpus=4)
    site.create("paused", gpus=4, run_for="1h")
    site.until("paused", "Running")
    site.patch("paused", {"suspend": True})
    assert "suspended" in site.until("paused", "Pending")["message"]
    site.create("other", gpus=4, run_for="100ms")
    site.until("other", "Succeeded")
    assert not [pod for pod in site.pods() if pod["metadata"]["labels"]["app"] == "paused"]
    site.patch("paused", {"suspend": False})
    site.until("paused", "Running")
    site.end("paused")
    assert site.until("paused", "Succeeded")["retryCount"] == 0


@pytest.mark.parametrize(
    ("phase", "spec"),
    [
        ("Pending", {"gpus": 8}),
        ("Scheduled", {"template": {"spec": {"schedulingGates": [{"name": "example.com/later"}]}}}),
        ("Running", {"run_for": "1h"}),
        ("Succeeded", {"run_for": "100ms"}),
        ("Failed", {"run_for": "1h", "maxRuntimeSeconds": 1}),
    ],
)
def test_delete_in_any_phase_leaves_nothing(site: Site, phase: str, spec: dict[str, Any]) -> None:
    site.nodes(1, gpus=4)
    site.create("doomed", **spec)
    site.until("doomed", phase)
    site.delete("doomed")
    site.gone("doomed")
    eventually(lambda: not site.jobs() and not site.pods(), "Job and pods are gone")


def test_deleted_job_is_created_again(site: Site) -> None:
    site.nodes(1)
    site.create("kept", run_for="1h")
    name = site.until("kept", "Running")["jobName"]
    old = site.jobs()[0]["metadata"]["uid"]
    site.cluster.kubectl("delete", "job", name, "-n", site.namespace)
    eventually(lambda: [j for j in site.jobs() if j["metadata"]["uid"] != old], "a new Job")
    assert site.until("kept", "Running")["retryCount"] == 0


def test_invalid_template_is_reported(site: Site) -> None:
    installation.open_up(site.cluster, site.namespace)  # else the webhook says it first
    site.nodes(1)
    for name, template, words in (
        ("pinned", {"spec": {"nodeName": "x"}}, "nodeName is 'x'"),
        ("twins", {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}, "two containers called 'a'"),
        (
            "quantity",
            {"spec": {"containers": [{"name": "a", "resources": {"limits": {"memory": "much"}}}]}},
            "'much' is not a quantity",
        ),
        # Only the API server can find this error.
        ("imageless", {"spec": {"containers": [{"name": "a"}]}}, "image"),
    ):
        site.create(name, template=template)
        status = site.until(name, "Failed")
        assert words in status["message"], status
        assert {c["type"]: c["reason"] for c in status["conditions"]}["Scheduled"] == "InvalidTemplate"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"schedulingStrategy": "least loaded"}, "schedulingStrategy", id="strategy"),
        pytest.param({"gpuCount": 9}, "gpuCount", id="too many GPUs"),
        pytest.param({"modelName": ""}, "modelName", id="no model"),
        pytest.param({"retryPolicy": {"maxRetries": 11}}, "maxRetries", id="too many tries"),
        pytest.param({"retryPolicy": {"onNoCapacity": "Never"}}, "onNoCapacity", id="neither wait nor retry"),
    ],
)
def test_invalid_spec_is_refused_by_the_api_server(site: Site, spec: dict[str, object], words: str) -> None:
    with pytest.raises(ApiError) as refused:
        site.create("bad", **{"gpus": 1, **spec})  # type: ignore[arg-type]
    assert words in str(refused.value)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_built_in_strategy_places_a_workload(site: Site, strategy: str) -> None:
    site.nodes(1)
    site.create("any", run_for="100ms", schedulingStrategy=strategy)
    assert site.until("any", *FINAL)["phase"] == "Succeeded"


def test_unknown_strategy_waits_until_it_is_corrected(site: Site) -> None:
    site.nodes(1)
    site.create("typo", run_for="100ms", schedulingStrategy="leastload")
    status = site.until("typo", "Pending")
    assert status["message"].startswith(
        "unknown strategy 'leastload'; did you mean 'leastLoaded'? known: binPack"
    )
    assert status["retryCount"] == 0
    assert "did you mean" in site.event("typo", "FailedScheduling")
    site.patch("typo", {"schedulingStrategy": "leastLoaded"})
    site.until("typo", "Succeeded")


def test_missing_volume_costs_no_try_and_no_other_node(site: Site) -> None:
    site.nodes(1)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}}]
    container = {"name": "main", "image": "x"}
    spec = {"volumes": volumes, "containers": [container]}
    once = {"maxRetries": 1, "backoffSeconds": 1}
    site.create("reader", run_for="100ms", template={"spec": spec}, retryPolicy=once)
    missing = f"PersistentVolumeClaim {site.namespace}/training-data does not exist; create it"
    assert site.event("reader", "FailedScheduling") == f"its pod cannot start on any node: {missing}"
    assert site.status("reader")["retryCount"] == 0
    assert site.jobs() == []
    site.volume("training-data")
    assert site.until("reader", "Succeeded")["retryCount"] == 0


def test_longest_names_and_non_ascii_models_succeed(site: Site) -> None:
    site.nodes(1)
    long = "a" * 245 + ".example"
    site.create(long, modelName="大型语言模型/七十亿-" + "x" * 200, run_for="100ms")
    site.create("b", modelName="模" * 255, run_for="100ms")
    site.until(long, "Succeeded")
    site.until("b", "Succeeded")
    assert all(len(job["metadata"]["name"]) <= 63 for job in site.jobs())
