"""How much of one pod is checked on every node: what people write is taken, thousands are refused by name."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import pod_limits
from gpu_orchestrator.api.pod import PodSpec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def spec(**fields: Any) -> PodSpec:
    return msgspec.convert(fields, PodSpec)


def conditions(count: int, values: int = 1) -> list[dict[str, Any]]:
    return [
        {"key": f"k{n}", "operator": "In", "values": [str(value) for value in range(values)]}
        for n in range(count)
    ]


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def preferred(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": each} for each in terms]}}}


def selector(count: int) -> dict[str, Any]:
    return {"nodeSelector": {f"k{n}": "x" for n in range(count)}}


def ports(count: int) -> list[dict[str, Any]]:
    return [{"name": "c", "ports": [{"hostPort": 1 + n} for n in range(count)]}]


def claims(count: int) -> dict[str, Any]:
    return {"volumes": [{"persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(count)]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param(selector(65), "conditions on nodes (nodeSelector, node affinity): 65", id="selector"),
        pytest.param(
            {**selector(32), **required({"matchExpressions": conditions(33)})},
            "conditions on nodes (nodeSelector, node affinity): 65 found, up to 64",
            id="selector and affinity together",
        ),
        pytest.param(required({"matchFields": conditions(65)}), "conditions on nodes", id="fields"),
        pytest.param(preferred({"matchExpressions": conditions(65)}), "conditions on", id="preferred"),
        pytest.param(required(*[{}] * 65), "node affinity terms: 65 found", id="terms"),
        pytest.param(preferred(*[{}] * 65), "node affinity terms: 65 found", id="preferred terms"),
        pytest.param(
            required({"matchExpressions": conditions(1, values=513)}),
            "values in node affinity: 513 found, up to 512 are taken; give the nodes you mean one label",
            id="values",
        ),
        pytest.param({"tolerations": [{"key": "k"}] * 65}, "tolerations: 65 found", id="tolerations"),
        pytest.param({"containers": ports(65)}, "host ports: 65 found", id="host ports"),
        pytest.param({"containers": ports(33), "initContainers": ports(32)}, "host ports: 65", id="sidecars"),
        pytest.param(claims(65), "volumes that are claims: 65 found", id="claims"),
        pytest.param({"volumes": [{"ephemeral": {}}] * 65}, "volumes that are claims: 65", id="ephemeral"),
    ],
)
def test_too_much_is_named(asked: dict[str, Any], message: str) -> None:
    assert message in pod_limits.excess(spec(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, id="nothing"),
        pytest.param(selector(64), id="selector"),
        pytest.param(required({"matchExpressions": conditions(1, values=512)}), id="a list of nodes"),
        pytest.param(required(*[{"matchExpressions": conditions(1)}] * 64), id="terms"),
        pytest.param({"tolerations": [{"key": "k"}] * 64}, id="tolerations"),
        pytest.param(
            {"containers": [{"ports": [{}] * 1000}, *ports(64)]}, id="ports that are not the host's"
        ),
        pytest.param({"volumes": [{"name": f"config-{n}"} for n in range(100)]}, id="ConfigMaps"),
        pytest.param(claims(64), id="claims"),
    ],
)
def test_what_people_write_is_taken(asked: dict[str, Any]) -> None:
    assert pod_limits.excess(spec(**asked)) == ""
