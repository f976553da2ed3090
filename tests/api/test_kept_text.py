"""Of the text that users write into objects that we store, only what we read stays in memory."""

import sys
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS
from gpu_orchestrator.api.job import JOBS
from gpu_orchestrator.api.kubernetes import NAMESPACES, NODES, PODS, VOLUME_CLAIMS
from gpu_orchestrator.api.seen_pod import SEEN_PODS
from gpu_orchestrator.api.wire import ObjectMeta, Resource

FOREIGN = {"example.com/notes": "x" * 260_000, "gpu.scheduling/unknown": "y"}


def decoded(resource: Resource[Any], annotations: dict[str, str], **more: Any) -> Any:
    meta = {"name": "a", "labels": {"app": "a"}, "annotations": annotations}
    return msgspec.json.decode(msgspec.json.encode({"metadata": meta, **more}), type=resource.type)


CLAIM_SPEC = {"devices": {"count": 1}}


@pytest.mark.parametrize(
    ("resource", "own", "more"),
    [
        pytest.param(PODS, {names.GPUS: "2", names.ALLOCATED: "n:0"}, {}, id="pod"),
        pytest.param(NODES, {names.NODE_DEVICES: '{"count": 8}'}, {}, id="node"),
        pytest.param(NAMESPACES, {}, {}, id="namespace"),
        pytest.param(VOLUME_CLAIMS, {"volume.kubernetes.io/selected-node": "n"}, {}, id="volume claim"),
        pytest.param(JOBS, {names.MADE_FROM: "0a1b"}, {}, id="job"),
        pytest.param(GPU_CLAIMS, {names.LEASE_POD: "p"}, {"spec": CLAIM_SPEC}, id="claim"),
    ],
)
def test_only_annotations_that_we_read_are_kept(
    resource: Resource[Any], own: dict[str, str], more: dict[str, Any]
) -> None:
    found = decoded(resource, {**own, **FOREIGN}, **more)
    assert found.metadata.annotations == own
    assert found.metadata.labels == {"app": "a"}


def test_agent_keeps_of_a_pod_what_it_needs() -> None:
    """A tenant with fifty pods of a megabyte on a node would end its agent."""
    long: dict[str, Any] = {f"example.com/{n}": "x" * 63 for n in range(5000)}
    meta: dict[str, Any] = {
        "name": "a",
        "namespace": "team",
        "uid": "u",
        "labels": long,
        "finalizers": list(long),
    }
    owners = [{"apiVersion": "v1", "kind": "X", "name": name, "uid": name} for name in long]
    body = {
        "metadata": {**meta, "annotations": {**long, names.ALLOCATED: "n:0"}, "ownerReferences": owners},
        "spec": {"nodeName": "n", "nodeSelector": long, "containers": [{"name": "c", "args": list(long)}]},
        "status": {"phase": "Running", "message": "x" * 100_000},
    }
    found = msgspec.json.decode(msgspec.json.encode(body), type=SEEN_PODS.type)
    assert msgspec.to_builtins(found) == {
        "metadata": {
            **msgspec.to_builtins(ObjectMeta("a", "team", "u")),
            "annotations": {names.ALLOCATED: "n:0"},
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    }


def test_annotations_of_a_workload_are_kept_for_its_job() -> None:
    found = decoded(GPU_WORKLOADS, FOREIGN, spec={"modelName": "m", "gpuCount": 1})
    assert found.metadata.annotations == FOREIGN


def test_annotations_of_a_jobs_pods_are_not_kept() -> None:
    found = decoded(JOBS, {}, spec={"template": {"metadata": {"annotations": FOREIGN}}})
    assert found.spec.template.metadata.annotations == {}


@pytest.mark.parametrize("name", [*names.ASKING_ANNOTATIONS, *names.ANSWERING_ANNOTATIONS, names.STRATEGY])
def test_long_annotation_of_a_pod_is_cut(name: str) -> None:
    found = decoded(PODS, {name: "9" * 260_000}).metadata.annotations
    assert sum(map(sys.getsizeof, found.values())) < 20_000
    assert all(len(text) > names.LONGEST_NAME for text in found.values())
