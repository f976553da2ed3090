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
from gpu_orchestrator.api.wire import Resource

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
