"""Which claim a pod names, which one serves it, and which pod a claim is kept for."""

import pytest

from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from tests.support.scheduler_objects import claim, pod


@pytest.mark.parametrize(
    ("asking", "named", "is_template", "own"),
    [
        pytest.param(pod("p", gpus=1), "", False, "", id="bare GPUs"),
        pytest.param(pod("p", claim="c"), "c", False, "c", id="a claim"),
        pytest.param(pod("p", claim_template="t"), "t", True, "p-uid-p", id="a template"),
    ],
)
def test_claim_of_a_pod(asking: Pod, named: str, is_template: bool, own: str) -> None:
    assert (claims.named_claim(asking), claims.is_template(asking)) == (named, is_template)
    assert claims.claim_name(asking) == own


@pytest.mark.parametrize(
    ("found", "uid"),
    [
        pytest.param(claim("c"), "", id="free"),
        pytest.param(claim("c", reserved_for="uid-p"), "uid-p", id="kept"),
    ],
)
def test_served(found: GpuClaim, uid: str) -> None:
    assert claims.reserved_for(found) == uid
