"""Fields that a decision relied on cannot be changed afterwards, on the real API server; all others can."""

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.cluster import Cluster
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS
from gpu_orchestrator.api.podtemplate import POD_FIELDS
from tests.support import installed_kinds

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "main", "image": "busybox"}], "volumes": [{"name": "v"}]},
}
SPEC = {
    "modelName": "llama2",
    "gpuCount": 2,
    "template": TEMPLATE,
    "claim": {"devices": {"policy": "packed"}},
}


@pytest.fixture
def workload(kinds: Cluster, namespace: str) -> str:
    """The path of a new workload."""
    body = installed_kinds.manifest(GPU_WORKLOADS, "w", SPEC)
    kinds.api.request("POST", GPU_WORKLOADS.path(namespace), body)
    return GPU_WORKLOADS.path(namespace, "w")


def set_phase(cluster: Cluster, path: str, phase: str) -> None:
    cluster.api.request("PATCH", f"{path}/status", {"status": {"phase": phase}}, content_type=MERGE)


CHANGES = [
    pytest.param({"modelName": "other"}, "modelName", id="model"),
    pytest.param({"gpuCount": 4}, "gpuCount", id="count"),
    pytest.param({"replicas": 2}, "replicas", id="replicas"),
    pytest.param({"template": None}, "template", id="template removed"),
    pytest.param({"template": {"spec": None}}, "template", id="pod spec removed"),
    pytest.param({"template": {"spec": {"containers": []}}}, "template", id="containers changed"),
    pytest.param({"template": {"spec": {"volumes": None, "nodeName": "n"}}}, "template", id="field swapped"),
    pytest.param({"template": {"spec": {"volumes": None, "new": 1}}}, "template", id="swapped for unknown"),
    pytest.param({"template": {"metadata": {"labels": {"a": "c"}}}}, "template", id="label changed"),
    pytest.param({"template": {"metadata": {"labels": None, "x": 1}}}, "template", id="labels swapped"),
    pytest.param({"claim": None}, "claim", id="claim removed"),
    pytest.param({"claim": {"devices": {"policy": "spread"}}}, "claim", id="claim changed"),
    pytest.param({"claim": {"selector": {"matchLabels": {"a": "b"}}}}, "claim", id="claim grown"),
]


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_scheduled_workload_cannot_change(kinds: Cluster, workload: str, change: Json, field: str) -> None:
    assert installed_kinds.refusal(kinds, "PATCH", workload, {"spec": change}) == ""
    set_phase(kinds, workload, "Scheduled")
    message = installed_kinds.refusal(kinds, "PATCH", workload, {"spec": change})
    assert f"spec.{field}: " in message
    assert f"spec.{field} cannot be changed once the workload is scheduled" in message


@pytest.mark.parametrize(
    ("phase", "settled"),
    [
        ("Pending", False),
        ("Scheduling", False),
        ("Scheduled", True),
        ("Running", True),
        ("Failed", True),
        ("Succeeded", True),
    ],
)
def test_phases_in_which_the_spec_is_fixed(kinds: Cluster, workload: str, phase: str, settled: bool) -> None:
    set_phase(kinds, workload, phase)
    message = installed_kinds.refusal(kinds, "PATCH", workload, {"spec": {"gpuCount": 3}})
    assert ("spec.gpuCount" in message) is settled


def test_other_fields_of_a_running_workload_can_change(kinds: Cluster, workload: str) -> None:
    set_phase(kinds, workload, "Running")
    change = {"suspend": True, "priority": "high", "retryPolicy": {"maxRetries": 9}, "maxRuntimeSeconds": 60}
    assert installed_kinds.refusal(kinds, "PATCH", workload, {"spec": change}) == ""


def test_template_declares_every_pod_field(kinds: Cluster) -> None:
    """A field it does not know could be swapped for another one after scheduling."""
    schemas = kinds.api.request("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    assert set(schemas["io.k8s.api.core.v1.PodSpec"]["properties"]) == set(POD_FIELDS.split())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"devices": {"count": 3}}, "devices"),
        ({"devices": {"model": "H100"}}, "devices"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "selector"),
        ({"selector": None}, "selector"),
        ({"topology": {"mode": "Ignore"}}, "topology"),
        ({"network": {"minPorts": 1}}, "network"),
        ({"storage": {"cuFile": True}}, "storage"),
        ({"gangRef": "other"}, "gangRef"),
        ({"gangSize": 3}, "gangSize"),
    ],
)
def test_claim_spec_cannot_change(kinds: Cluster, namespace: str, change: Json, field: str) -> None:
    spec = {"selector": {"matchLabels": {"zone": "a"}}, "gangRef": "gang"}
    kinds.api.request("POST", GPU_CLAIMS.path(namespace), installed_kinds.manifest(GPU_CLAIMS, "c", spec))
    message = installed_kinds.refusal(kinds, "PATCH", GPU_CLAIMS.path(namespace, "c"), {"spec": change})
    assert f"spec.{field} cannot be changed" in message


@pytest.fixture
def node_status(kinds: Cluster, namespace: str) -> Iterator[str]:
    """The path of a GpuNodeStatus of its own."""
    body = installed_kinds.manifest(GPU_NODE_STATUSES, namespace, {"nodeName": namespace})
    kinds.api.request("POST", GPU_NODE_STATUSES.path(), body)
    yield GPU_NODE_STATUSES.path(name=namespace)
    kinds.api.request("DELETE", GPU_NODE_STATUSES.path(name=namespace))


def test_node_of_a_node_status_cannot_change(kinds: Cluster, node_status: str) -> None:
    message = installed_kinds.refusal(kinds, "PATCH", node_status, {"spec": {"nodeName": "other"}})
    assert "spec.nodeName cannot be changed" in message


def test_status_and_spec_are_written_separately(kinds: Cluster, workload: str) -> None:
    both = {"spec": {"suspend": True}, "status": {"message": "hello"}}
    by_spec = kinds.api.request("PATCH", workload, both, content_type=MERGE)
    assert by_spec["spec"]["suspend"] is True
    assert "status" not in by_spec
    again = {"spec": {"suspend": False}, "status": {"message": "hello"}}
    by_status = kinds.api.request("PATCH", f"{workload}/status", again, content_type=MERGE)
    assert by_status["spec"]["suspend"] is True
    assert by_status["status"]["message"] == "hello"
    assert by_status["metadata"]["generation"] == by_spec["metadata"]["generation"]
