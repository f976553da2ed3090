"""Why a pod failed, from its status."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api.job import EndedPod
from gpu_orchestrator.apps.operator.observe.ended_pods import cause_of


def ended(code: int, reason: str = "", name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        pytest.param({"phase": "Succeeded", "containerStatuses": [ended(0)]}, "", id="it did not fail"),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [ended(0, name="side"), ended(137, "OOMKilled")]},
            "container main ended with exit code 137 (OOMKilled)",
            id="out of memory",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "initContainerStatuses": [ended(2, name="fetch")],
                "containerStatuses": [{"name": "main", "state": {"waiting": {}}}],
            },
            "container fetch ended with exit code 2",
            id="before the start",
        ),
        pytest.param(
            {"phase": "Failed", "message": "The node was low on resource: memory."},
            "The node was low on resource: memory.",
            id="evicted",
        ),
    ],
)
def test_cause_comes_from_the_pods_status(status: dict[str, Any], cause: str) -> None:
    pod = msgspec.convert({"metadata": {"name": "p"}, "status": status}, EndedPod)
    assert cause_of(pod) == cause
