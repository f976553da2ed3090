"""Paths, keys and computed names."""

import pytest

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES
from gpu_orchestrator.api.kubernetes import LEASES, PODS, Node
from gpu_orchestrator.api.wire import ObjectMeta, key


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("a", "p", "binding"), "/api/v1/namespaces/a/pods/p/binding"),
        (LEASES.path("a"), "/apis/coordination.k8s.io/v1/namespaces/a/leases"),
        (GPU_NODE_STATUSES.path("ignored", "n"), "/apis/gpu.scheduling/v1/gpunodestatuses/n"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_key_without_namespace_is_the_name() -> None:
    assert key(Node(ObjectMeta(name="n"))) == "n"


def test_job_name_can_be_computed_again() -> None:
    uid = "0f9a8b7c-2222-4c1d-9e0f-000000000001"
    assert names.job("bert", uid) == "bert-job-0f9a8b7c"
    assert names.job("bert", uid, retry=2) == "bert-job-0f9a8b7c-r2"
    assert names.job("b" * 46 + ".ert", uid, retry=2) == "b" * 46 + "-job-0f9a8b7c-r2"


def test_lease_names() -> None:
    assert names.device_lease("node-a", 3) == "gpu-node-a-3"
