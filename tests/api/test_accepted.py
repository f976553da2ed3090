"""Whatever our types can hold the real API server accepts, and gives back as the same value.

So a status we computed is never refused, a valid object decodes, and defaults are the same on both sides.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import structs

from controlplane.cluster import Cluster
from gpu_orchestrator.api import crds
from gpu_orchestrator.api.crds import Kind
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.wire import Resource
from tests.support import installed_kinds, wire_values
from tests.support.scale import Scale

each_kind = pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.resource.kind)
SMALLEST = {"GPUWorkload": {"modelName": "m", "gpuCount": 1}, "GpuNodeStatus": {"nodeName": "n"}}


@each_kind
def test_any_valid_spec_is_accepted(kinds: Cluster, namespace: str, scale: Scale, kind: Kind) -> None:
    resource = kind.resource
    path = collection(resource, namespace)

    def send(spec: msgspec.Struct) -> Any:
        body = installed_kinds.manifest(resource, f"{namespace}-any", spec)
        return kinds.api.request("POST", f"{path}?dryRun=All", body)

    comes_back(resource, "spec", send, examples=scale(test=30, accept=1000))


@each_kind
def test_any_valid_status_is_accepted(kinds: Cluster, namespace: str, scale: Scale, kind: Kind) -> None:
    resource = kind.resource
    path, name = collection(resource, namespace), f"{namespace}-status"
    made = kinds.api.request(
        "POST", path, installed_kinds.manifest(resource, name, SMALLEST.get(resource.kind, {}))
    )

    def send(status: msgspec.Struct) -> Any:
        body = {**made, "status": msgspec.to_builtins(status)}
        return kinds.api.request("PUT", f"{path}/{name}/status?dryRun=All", body)

    comes_back(resource, "status", send, examples=scale(test=30, accept=1000))
    kinds.api.request("DELETE", f"{path}/{name}")


@each_kind
def test_smallest_object_gets_the_same_defaults_on_both_sides(
    kinds: Cluster, namespace: str, kind: Kind
) -> None:
    body = installed_kinds.manifest(kind.resource, f"{namespace}-small", SMALLEST.get(kind.resource.kind, {}))
    stored = kinds.api.request("POST", f"{collection(kind.resource, namespace)}?dryRun=All", body)
    ours = msgspec.convert(body, kind.resource.type)
    theirs = msgspec.convert(stored, kind.resource.type)
    assert theirs.spec == ours.spec
    assert theirs.status == ours.status


def test_whole_number_written_as_float_returns_as_integer(kinds: Cluster, namespace: str) -> None:
    """Our decoder is stricter than the server, which takes 2.0 for an integer."""
    body = installed_kinds.manifest(GPU_WORKLOADS, "float", {"modelName": "m", "gpuCount": 2.0})
    stored = kinds.api.request("POST", f"{GPU_WORKLOADS.path(namespace)}?dryRun=All", body)
    assert msgspec.convert(stored, GPUWorkload).spec.gpu_count == 2


def comes_back(
    resource: Resource[Any], part: str, send: Callable[[msgspec.Struct], Any], *, examples: int
) -> None:
    fields = {field.name: field.type for field in structs.fields(resource.type)}

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(wire_values.of(fields[part]))
    def same(value: msgspec.Struct) -> None:
        assert getattr(msgspec.convert(send(value), resource.type), part) == value

    same()


def collection(resource: Resource[Any], namespace: str) -> str:
    return resource.path(namespace if resource.namespaced else "")
