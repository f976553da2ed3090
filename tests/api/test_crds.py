"""The CRDs are made from the types, equal those in config/crd, and describe every field."""

import re
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import crds, reference, schema
from gpu_orchestrator.api.crds import Kind
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpuworkload import STRATEGY, GPUWorkload
from gpu_orchestrator.apps.manager.fleet import strategies
from gpu_orchestrator.policies.registry import STRATEGIES
from tests.support.paths import ROOT

each_kind = pytest.mark.parametrize("kind", crds.KINDS, ids=lambda kind: kind.resource.kind)


def test_files_match_the_types() -> None:
    """If this fails, run `make crds`."""
    written = {path.name: path.read_text() for path in (ROOT / "config/crd").glob("*.yaml")}
    assert written == crds.files()
    assert (ROOT / "docs/reference/crds.md").read_text() == reference.markdown()


@each_kind
def test_every_field_has_a_description(kind: Kind) -> None:
    fields = dict(schema.described(crds.object_schema(kind.resource.type)))
    assert len(fields) > 10
    assert [path for path, words in fields.items() if not words and path != ".metadata"] == []


@each_kind
def test_every_rule_names_a_field_that_exists(kind: Kind) -> None:
    whole = crds.object_schema(kind.resource.type)
    for at, rule in rules(whole):
        field = at + rule["fieldPath"]
        assert field in dict(schema.described(whole)), rule
        assert field.rpartition(".")[2] in rule["message"], rule


def rules(part: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    here = [(path, rule) for rule in part.get("x-kubernetes-validations", [])]
    below = [rules(inner, f"{path}.{name}") for name, inner in part.get("properties", {}).items()]
    return here + [found for each in below for found in each]


def test_description_of_the_strategy_names_every_built_in_one() -> None:
    """The field is open for strategies of packages, so its description is where users read the names."""
    words = dict(schema.described(crds.object_schema(GPUWorkload)))[".spec.schedulingStrategy"]
    listed = re.findall(r"(?:: |, )(\w+) (?:takes|any|one|the)", words)
    assert set(listed) == set(STRATEGIES)
    assert set(STRATEGIES) <= set(strategies.registry("balanced").strategies)
    assert [name for name in STRATEGIES if not re.fullmatch(STRATEGY, name)] == []


def test_default_that_means_absence_is_not_written() -> None:
    spec = schema.of(GPUWorkload)["properties"]["spec"]["properties"]
    assert "default" not in spec["suspend"]
    assert "default" not in spec["claim"]
    assert spec["replicas"]["default"] == 1
    assert spec["retryPolicy"]["default"] == {"maxRetries": 3, "backoffSeconds": 30}


def test_type_without_a_schema_is_an_error() -> None:
    class Odd(msgspec.Struct):
        odd: complex | None = None
        when: bytes = b""

    with pytest.raises(TypeError, match="no schema is known for"):
        schema.of(Odd)


def test_decoding_applies_the_defaults() -> None:
    workload = msgspec.json.decode(
        b'{"metadata": {"name": "a"}, "spec": {"modelName": "m", "gpuCount": 2}}', type=GPUWorkload
    )
    spec = workload.spec
    assert (spec.priority, spec.scheduling_strategy, spec.replicas, spec.suspend) == (
        "normal",
        "leastLoaded",
        1,
        False,
    )
    assert (spec.retry_policy.max_retries, spec.retry_policy.backoff_seconds) == (3, 30)
    claim = msgspec.json.decode(b'{"metadata": {"name": "a"}, "spec": {}}', type=GpuClaim)
    assert (claim.spec.devices.count, claim.spec.devices.exclusivity) == (1, "Exclusive")
    assert (claim.spec.devices.policy, claim.spec.topology.mode) == ("contiguous", "Preferred")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ('{"modelName": "", "gpuCount": 1}', "modelName"),
        ('{"modelName": "m", "gpuCount": 9}', "gpuCount"),
        ('{"modelName": "m", "gpuCount": 1, "schedulingStrategy": "least loaded"}', "schedulingStrategy"),
        ('{"modelName": "m", "gpuCount": 1, "retryPolicy": {"maxRetries": 11}}', "retryPolicy.maxRetries"),
    ],
)
def test_decoding_keeps_the_bounds(spec: str, field: str) -> None:
    text = f'{{"metadata": {{"name": "a"}}, "spec": {spec}}}'
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.spec\.{field}"):
        msgspec.json.decode(text, type=GPUWorkload)
