"""The real API server refuses each wrong value, and its message names the field."""

from typing import Any

import pytest

from controlplane.cluster import Cluster
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS
from tests.support import installed_kinds

Json = dict[str, Any]
VALID: Json = {"modelName": "llama2", "gpuCount": 2}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"gpuCount": 0}, "spec.gpuCount"),
        ({"gpuCount": 9}, "spec.gpuCount"),
        ({"gpuCount": "two"}, "spec.gpuCount"),
        ({"gpuCount": None}, "spec.gpuCount"),
        ({"modelName": ""}, "spec.modelName"),
        ({"modelName": "m" * 256}, "spec.modelName"),
        ({"modelName": None}, "spec.modelName"),
        ({"priority": "urgent"}, "spec.priority"),
        ({"schedulingStrategy": "least loaded"}, "spec.schedulingStrategy"),
        ({"schedulingStrategy": ""}, "spec.schedulingStrategy"),
        ({"schedulingStrategy": "s" * 64}, "spec.schedulingStrategy"),
        ({"retryPolicy": {"maxRetries": 0}}, "spec.retryPolicy.maxRetries"),
        ({"retryPolicy": {"maxRetries": 11}}, "spec.retryPolicy.maxRetries"),
        ({"retryPolicy": {"backoffSeconds": 0}}, "spec.retryPolicy.backoffSeconds"),
        ({"retryPolicy": {"backoffSeconds": 301}}, "spec.retryPolicy.backoffSeconds"),
        ({"replicas": 0}, "spec.replicas"),
        ({"replicas": 513}, "spec.replicas"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
        ({"ttlSecondsAfterFinished": 2**31}, "spec.ttlSecondsAfterFinished"),
        ({"maxRuntimeSeconds": 0}, "spec.maxRuntimeSeconds"),
        ({"suspend": "yes"}, "spec.suspend"),
        ({"template": "busybox"}, "spec.template"),
        ({"template": {"spec": []}}, "spec.template.spec"),
        ({"claim": {"devices": {"policy": "anyhow"}}}, "spec.claim.devices.policy"),
        ({"claim": {"devices": {"count": 3}}}, "spec.claim.devices.count"),
        ({"claim": {"devices": {"share": 500}}}, "spec.claim.devices.share"),
        ({"claim": {"devices": {"exclusivity": "Shared"}}}, "spec.claim.devices.share"),
        ({"claim": {"devices": {"exclusivity": "MIG"}}}, "spec.claim.devices.migProfile"),
        ({"claim": {"topology": {"mode": "Maybe"}}}, "spec.claim.topology.mode"),
    ],
)
def test_wrong_workload_is_refused(kinds: Cluster, wrong: Json, field: str) -> None:
    assert_refused(kinds, GPU_WORKLOADS.path("default"), GPU_WORKLOADS, {**VALID, **wrong}, field)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"devices": {"count": 0}}, "spec.devices.count"),
        ({"devices": {"count": 65}}, "spec.devices.count"),
        ({"devices": {"policy": "scattered"}}, "spec.devices.policy"),
        ({"devices": {"policy": "preferIds"}}, "spec.devices.preferIds"),
        ({"devices": {"policy": "preferIds", "preferIds": []}}, "spec.devices.preferIds"),
        ({"devices": {"preferIds": [-1]}}, "spec.devices.preferIds[0]"),
        ({"devices": {"preferIds": [1, 1]}}, "spec.devices.preferIds[1]"),
        ({"devices": {"exclusivity": "shared"}}, "spec.devices.exclusivity"),
        ({"devices": {"memoryMiB": 100}}, "spec.devices.memoryMiB"),
        ({"devices": {"share": 100}}, "spec.devices.share"),
        ({"devices": {"exclusivity": "Shared"}}, "spec.devices.share"),
        ({"devices": {"exclusivity": "MIG"}}, "spec.devices.migProfile"),
        ({"devices": {"exclusivity": "Shared", "share": 0}}, "spec.devices.share"),
        ({"devices": {"exclusivity": "Shared", "share": 1001}}, "spec.devices.share"),
        ({"devices": {"exclusivity": "Shared", "migProfile": "1g.10gb"}}, "spec.devices.migProfile"),
        ({"devices": {"exclusivity": "MIG", "migProfile": "a tenth"}}, "spec.devices.migProfile"),
        ({"devices": {"exclusivity": "MIG", "memoryMiB": 100}}, "spec.devices.memoryMiB"),
        ({"devices": {"vendor": "acme"}}, "spec.devices.vendor"),
        ({"selector": {"matchLabels": {"zone": "a b"}}}, "spec.selector.matchLabels.zone"),
        ({"topology": {"mode": "required"}}, "spec.topology.mode"),
        ({"topology": {"minBandwidthGBps": -1}}, "spec.topology.minBandwidthGBps"),
        ({"gangSize": 2}, "spec.gangSize"),
        ({"gangRef": "gang", "gangSize": 0}, "spec.gangSize"),
        ({"gangRef": "No Name"}, "spec.gangRef"),
        ({"network": {"minPorts": 0}}, "spec.network.minPorts"),
        ({"storage": {"cuFile": "yes"}}, "spec.storage.cuFile"),
    ],
)
def test_wrong_claim_is_refused(kinds: Cluster, wrong: Json, field: str) -> None:
    assert_refused(kinds, GPU_CLAIMS.path("default"), GPU_CLAIMS, wrong, field)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"weight": 0}, "spec.weight"),
        ({"weight": 1_000_001}, "spec.weight"),
        ({"weight": 0.5}, "spec.weight"),
        ({"limit": {"*": -1}}, "spec.limit.*"),
        ({"limit": {"H100": "8"}}, "spec.limit.H100"),
        ({"limit": {f"m{n}": 1 for n in range(65)}}, "spec.limit"),
        ({"guaranteed": {"*": 2**31}}, "spec.guaranteed.*"),
        ({"guaranteed": {"*": 2}, "limit": {"*": 1}}, "spec.guaranteed"),
        ({"guaranteed": {"A": 1, "B": 2}, "limit": {"B": 1}}, "spec.guaranteed"),
        ({"parent": "wrong"}, "spec.parent"),
        ({"parent": "No Name"}, "spec.parent"),
        ({"parent": "p" * 64}, "spec.parent"),
        ({"borrowing": "yes"}, "spec.borrowing"),
        ({"namespaceSelector": {"matchLabels": {"team": "a b"}}}, "spec.namespaceSelector.matchLabels.team"),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In"}]}},
            "spec.namespaceSelector.matchExpressions[0].values",
        ),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
                }
            },
            "spec.namespaceSelector.matchExpressions[0].values",
        ),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Gt"}]}},
            "spec.namespaceSelector.matchExpressions[0].operator",
        ),
        ({"preemption": {"reclaim": "Always"}}, "spec.preemption.reclaim"),
        ({"preemption": {"within": "Any"}}, "spec.preemption.within"),
    ],
)
def test_wrong_queue_is_refused(kinds: Cluster, wrong: Json, field: str) -> None:
    assert_refused(kinds, GPU_QUEUES.path(), GPU_QUEUES, wrong, field)


@pytest.mark.parametrize("name", ["default", "q" * 64])
def test_queue_of_such_a_name_is_refused(kinds: Cluster, name: str) -> None:
    body = installed_kinds.manifest(GPU_QUEUES, name, {})
    assert "metadata.name" in installed_kinds.refusal(kinds, "POST", GPU_QUEUES.path(), body)


def test_node_status_without_a_node_is_refused(kinds: Cluster) -> None:
    assert_refused(kinds, GPU_NODE_STATUSES.path(), GPU_NODE_STATUSES, {}, "spec.nodeName")


@pytest.mark.parametrize("pair", [[], [0], [0, 1, 2]])
def test_link_that_is_not_a_pair_is_refused(kinds: Cluster, namespace: str, pair: list[int]) -> None:
    path = GPU_NODE_STATUSES.path()
    made = kinds.api.request(
        "POST", path, installed_kinds.manifest(GPU_NODE_STATUSES, namespace, {"nodeName": "n"})
    )
    links = [{"pair": pair, "type": "NVLink"}]
    message = installed_kinds.refusal(
        kinds, "PUT", f"{path}/{namespace}/status", {**made, "status": {"links": links}}
    )
    kinds.api.request("DELETE", f"{path}/{namespace}")
    assert "status.links[0].pair: " in message


@pytest.mark.parametrize(
    "resource", [GPU_WORKLOADS, GPU_CLAIMS, GPU_NODE_STATUSES, GPU_QUEUES], ids=lambda resource: resource.kind
)
def test_missing_spec_is_refused(kinds: Cluster, resource: Any) -> None:
    body = installed_kinds.manifest(resource, "wrong", {})
    del body["spec"]
    path = resource.path("default" if resource.namespaced else "")
    assert "spec: Required value" in installed_kinds.refusal(kinds, "POST", path, body)


def test_valid_object_is_accepted(kinds: Cluster) -> None:
    """The tables above prove nothing if everything is refused."""
    shared: tuple[Json, ...] = ({"share": 500}, {"memoryMiB": 4096}, {"share": 500, "memoryMiB": 4096})
    claims = [{"devices": {"exclusivity": "Shared", **held}} for held in shared]
    claims.append({"devices": {"exclusivity": "MIG", "migProfile": "1g.10gb"}})
    valid: list[tuple[Any, Json]] = [(GPU_WORKLOADS, VALID), *((GPU_CLAIMS, spec) for spec in ({}, *claims))]
    selector = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}
    queue = {
        "parent": "org",
        "guaranteed": {"*": 2},
        "limit": {"*": 2, "A": 1},
        "namespaceSelector": selector,
    }
    valid += [(GPU_QUEUES, {}), (GPU_QUEUES, {"namespaceSelector": {}}), (GPU_QUEUES, queue)]
    for resource, spec in valid:
        body = installed_kinds.manifest(resource, "right", spec)
        path = resource.path("default" if resource.namespaced else "")
        assert installed_kinds.refusal(kinds, "POST", path, body) == ""


def assert_refused(cluster: Cluster, path: str, resource: Any, spec: Json, field: str) -> None:
    message = installed_kinds.refusal(
        cluster, "POST", path, installed_kinds.manifest(resource, "wrong", spec)
    )
    assert f"{field}: " in message
