"""Which claim a pod names, which one serves it, and which pod a claim is kept for."""

import re

import pytest

from gpu_orchestrator.api import claims, names, pod_amounts
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.core.answer import Placement
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


LONG = "9" * 5000
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize("name", ["p" * 253, "p" * 239 + ".q", "p" * 239 + "-q", f"{'p' * 237}.-.q"])
def test_claim_made_from_a_template_has_a_valid_name(name: str) -> None:
    made = claims.claim_name(pod(name, claim_template="t", meta={"uid": "11111111-aaaa"}))
    assert SUBDOMAIN.fullmatch(made)
    assert len(made) <= 253


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [
        pytest.param("a:0,1", (0, 1), id="as we write it"),
        pytest.param("a:1,1,0", (1, 0), id="each once"),
        pytest.param("b:0", (), id="another node"),
        pytest.param("a:", (), id="nothing"),
        pytest.param("a:1024,1023", (1023,), id="more than a node can have"),
        pytest.param(f"a:{LONG}", (), id="a long number"),
        pytest.param("a:" + "0," * 5000, (), id="a long list"),
        pytest.param("a:٣,²,-1, 2", (), id="not digits"),
    ],
)
def test_devices_in_an_annotation_are_read_within_bounds(allocated: str, expected: tuple[int, ...]) -> None:
    assert claims.given(pod("p", node="a", allocated=allocated)) == expected


@pytest.mark.parametrize("gpus", [LONG, "٣", "²", "0", "65", "-1", "", "1.0"])
def test_number_of_gpus_is_refused_with_words(gpus: str) -> None:
    with pytest.raises(claims.BadGpuRequest, match="write a number from 1 to 64") as refused:
        claims.request(pod("p", gpus=gpus), None)
    assert len(str(refused.value)) < 200


def test_member_of_a_gang_may_ask_for_no_gpu_and_then_sees_none() -> None:
    asked = claims.request(pod("launcher", gpus=0, gang="g", gang_size=2), None)
    assert asked.shape.gpus == 0
    written = claims.answer(Placement("uid-launcher", "a"), ())
    assert written == {names.ALLOCATED: "a:", names.VISIBLE_DEVICES: "", names.LOCAL_DEVICES: "-1"}
    bound = pod("launcher", node="a", gpus=0, gang="g", allocated="a:")
    assert (claims.given(bound), claims.uuids(bound)) == ((), ())


def test_request_to_a_device_plugin_counts_whatever_the_annotation_says() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    asking, plain = (
        pod("p", node="a", allocated="a:1", containers=[limits]),
        pod("p", node="a", allocated="a:1"),
    )
    assert pod_amounts.taken(asking.spec).gpus == 2
    assert pod_amounts.taken(plain.spec).gpus == 0
