"""The server's own objects decode into our types, as the real API server writes them."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controlplane.cluster import Cluster
from gpu_orchestrator.api import job as wire_job
from gpu_orchestrator.api import kubernetes, volumes
from gpu_orchestrator.api.job import JOBS, Job
from gpu_orchestrator.api.kubernetes import EVENTS, LEASES, NODES, PODS, Node, Pod
from gpu_orchestrator.api.wire import Resource, key

Json = dict[str, Any]
EVERY_RESOURCE = [
    each for module in (kubernetes, wire_job) for each in vars(module).values() if isinstance(each, Resource)
]

MAIN = {
    "name": "main",
    "image": "i",
    "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "nvidia.com/gpu": "2"}},
    "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}],
}
SIDECAR = {"name": "side", "image": "i", "restartPolicy": "Always"}
TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "h100"]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
POD_SPEC: Json = {
    "schedulerName": "gpu-scheduler",
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "containers": [MAIN],
    "initContainers": [SIDECAR],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "pvc"}}],
    "affinity": {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}},
        "podAntiAffinity": {
            REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]
        },
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
    "schedulingGates": [{"name": "later"}],
}


def test_pod_with_every_field(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"name": "all", "annotations": {"gpu.scheduling/gpus": "2"}}, "spec": POD_SPEC}
    pod = create(cluster, PODS, namespace, body, Pod)
    spec = pod.spec
    assert key(pod) == f"{namespace}/all"
    assert pod.metadata.annotations == {"gpu.scheduling/gpus": "2"}
    assert (spec.scheduler_name, spec.node_selector, spec.priority) == ("gpu-scheduler", {"zone": "a"}, 0)
    assert (spec.tolerations[0].operator, spec.tolerations[0].effect) == ("Exists", "NoSchedule")
    (main,), (side,) = spec.containers, spec.init_containers
    assert main.resources.requests == {"cpu": "100m", "nvidia.com/gpu": "2"}
    assert (main.ports[0].host_port, main.ports[0].host_ip) == (8080, "127.0.0.1")
    assert side.restart_policy == "Always"
    required = spec.affinity.node_affinity.required
    assert required is not None
    (expression,) = required.node_selector_terms[0].match_expressions
    assert (expression.key, expression.operator, expression.values) == ("gpu", "In", ["a100", "h100"])
    assert (len(spec.affinity.pod_anti_affinity.required), spec.affinity.pod_affinity.required) == (1, [])
    claim = spec.volumes[0].persistent_volume_claim
    assert claim is not None
    assert claim.claim_name == "pvc"
    assert spec.topology_spread_constraints[0].when_unsatisfiable == "DoNotSchedule"
    assert spec.resource_claims[0].resource_claim_name == "claim"
    assert spec.scheduling_gates[0].name == "later"
    assert pod.status.phase == "Pending"
    assert [condition.reason for condition in pod.status.conditions] == ["SchedulingGated"]


def test_node_fields(cluster: Cluster, namespace: str) -> None:
    name = f"{namespace}-node"
    body = {
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": {"unschedulable": True, "taints": [{"key": "gpu", "value": "x", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    node = create(cluster, NODES, "", body, Node)
    cluster.api.request("DELETE", NODES.path(name=name))
    assert node.spec.unschedulable
    assert ("gpu", "x", "NoSchedule") in [
        (taint.key, taint.value, taint.effect) for taint in node.spec.taints
    ]
    assert node.status.allocatable == {"nvidia.com/gpu": "8"}
    assert [(each.type, each.status) for each in node.status.conditions] == [("Ready", "True")]


def test_finished_job(cluster: Cluster, namespace: str) -> None:
    nodes = cluster.gpu_nodes(1, prefix=namespace)
    spec = {"restartPolicy": "Never", "nodeName": nodes[0], "containers": [{"name": "main", "image": "i"}]}
    template = {"metadata": {"annotations": {"note": "x"}}, "spec": spec}
    body = {
        "metadata": {"name": "job"},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 600, "template": template},
    }
    created = create(cluster, JOBS, namespace, body, Job)
    assert created.spec.ttl_seconds_after_finished == 600
    assert created.spec.template.spec.node_name == nodes[0]
    assert created.spec.template.metadata.annotations == {}, "we read none, so none is kept"
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Complete", "--timeout=60s", "job/job")
    job = msgspec.convert(cluster.api.request("GET", JOBS.path(namespace, "job")), Job)
    assert (job.status.succeeded, job.status.active, job.status.failed) == (1, 0, 0)
    assert ("Complete", "True") in [(each.type, each.status) for each in job.status.conditions]
    assert job.status.completion_time
    events = wait_for(
        lambda: [each for each in listed(cluster, EVENTS, namespace) if each.reason == "Completed"]
    )
    assert (events[0].regarding.kind, events[0].regarding.name) == ("Job", "job")
    cluster.api.request("DELETE", NODES.path(name=nodes[0]))


@pytest.mark.parametrize("resource", EVERY_RESOURCE, ids=lambda resource: resource.kind)
def test_every_listed_object_decodes(cluster: Cluster, resource: Resource[Any]) -> None:
    """Nothing that a running cluster holds, of whatever writer, fails to decode."""
    listed(cluster, resource, "")


def test_lease_keeps_its_fields(cluster: Cluster, namespace: str) -> None:
    spec = kubernetes.LeaseSpec(
        holder_identity="me", lease_duration_seconds=15, renew_time="2025-01-01T00:00:00.000000Z"
    )
    body = {"metadata": {"name": "l"}, "spec": msgspec.to_builtins(spec)}
    assert create(cluster, LEASES, namespace, body, kubernetes.Lease).spec == spec


def test_lease_of_the_first_moment_decodes(cluster: Cluster, namespace: str) -> None:
    """The server writes that moment as null. A Lease that does not decode would be overlooked."""
    first = "0001-01-01T00:00:00.000000Z"
    body = {"metadata": {"name": "first"}, "spec": {"holderIdentity": "me", "renewTime": first}}
    spec = create(cluster, LEASES, namespace, body, kubernetes.Lease).spec
    assert (spec.holder_identity, spec.renew_time) == ("me", None)


def create(cluster: Cluster, resource: Resource[Any], namespace: str, body: Json, cls: type[Any]) -> Any:
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    return msgspec.convert(cluster.api.request("POST", resource.path(namespace), whole), cls)


def listed(cluster: Cluster, resource: Resource[Any], namespace: str) -> list[Any]:
    items = cluster.api.request("GET", resource.path(namespace))["items"]
    return [msgspec.convert(item, resource.type) for item in items]


def wait_for(found: Callable[[], list[Any]], timeout_s: float = 60) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    while not (result := found()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.1)
    return result


def test_node_without_volume_drivers_has_no_limits() -> None:
    """Its kubelet writes null."""
    body = b'{"metadata": {"name": "a"}, "spec": {"drivers": null}}'
    assert volumes.limits(msgspec.json.decode(body, type=kubernetes.CsiNode)) == ()
