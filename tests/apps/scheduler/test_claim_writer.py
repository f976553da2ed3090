"""How a claim is reserved for a pod, and which request a pod's claim becomes."""

from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter, Refused, Reserved
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from tests.support.scheduler_objects import claim, pod
from tests.support.scripted_transport import Scripted, answer, refusal

WAITING = pod("p", claim="c")


@pytest.mark.parametrize(
    ("claimant", "found", "script", "expected"),
    [
        pytest.param(WAITING, claim("c"), [answer({"metadata": {"name": "c"}})], Reserved(), id="free"),
        pytest.param(WAITING, claim("c", reserved_for="uid-p"), [], Reserved(), id="already reserved for it"),
        pytest.param(
            WAITING,
            claim("c"),
            [refusal(409, "Conflict"), answer(claim("c", reserved_for="uid-q"))],
            Refused("GpuClaim c changed in the meantime"),
            id="reserved for another pod since it was read",
        ),
        pytest.param(
            WAITING,
            claim("c"),
            [refusal(409, "Conflict"), answer(claim("c")), answer({"metadata": {"name": "c"}})],
            Reserved(),
            id="only its status changed since it was read",
        ),
        pytest.param(
            WAITING,
            claim("c"),
            [refusal(404, "NotFound")],
            Refused("GpuClaim c was deleted in the meantime"),
            id="deleted since it was read",
        ),
        pytest.param(
            pod("p", claim_template="t"),
            claim("t"),
            [refusal(409, "AlreadyExists"), answer(claim("p-uid-p", reserved_for="uid-p"))],
            Reserved(),
            id="its child exists already",
        ),
        pytest.param(
            pod("p", claim_template="t"),
            claim("t"),
            [refusal(409, "AlreadyExists"), answer(claim("p-uid-p", reserved_for="uid-q"))],
            Refused("GpuClaim p-uid-p exists and is not this pod's; delete it", is_for_user=True),
            id="another pod's claim has the child's name",
        ),
    ],
)
async def test_reserve(
    claimant: Pod, found: GpuClaim, script: list[Answer], expected: Reserved | Refused
) -> None:
    assert await ClaimWriter(Client(Scripted(*script))).reserve(claimant, found) == expected


DEVICES: list[tuple[str, Any, Any, Any]] = [
    ("ids alone", (Device(2), Device(5)), "2,5", "0,1"),
    ("nvidia", (Device(2, "GPU-x", "nvidia"), Device(5, "GPU-y", "nvidia")), "GPU-x,GPU-y", "GPU-x,GPU-y"),
    ("amd", (Device(2, "GPU-x", "amd"), Device(5, "GPU-y", "amd")), "GPU-x,GPU-y", "0,1"),
    ("one unknown", (Device(2, "GPU-x", "nvidia"), Device(5, "", "nvidia")), "2,5", "0,1"),
]


@pytest.mark.parametrize(
    ("devices", "visible", "local"), [each[1:] for each in DEVICES], ids=[d[0] for d in DEVICES]
)
def test_annotations_of_a_bound_pod(devices: tuple[Device, ...], visible: str, local: str) -> None:
    annotations = claims.answer(Placement("uid", "node-a", devices=(2, 5)), devices)
    assert annotations == {
        "gpu.scheduling/allocated": "node-a:2,5",
        "gpu.scheduling/visible-devices": visible,
        "gpu.scheduling/local-devices": local,
    }


def test_claim_becomes_a_request() -> None:
    made = claim(
        "c",
        count=2,
        policy="preferIds",
        preferIds=[3, 1],
        model="H100",
        vendor="nvidia",
        topology={"mode": "Required", "minBandwidthGBps": 600},
        selector={"matchLabels": {"zone": "b"}},
    )
    found = claims.request(pod("p", claim="c", nodeSelector={"disk": "ssd"}, priority=7), made.spec)
    shape = found.shape
    assert (found.key, found.priority, found.allocator, found.tenant) == ("uid-p", 7, "preferIds", "default")
    assert (shape.gpus, shape.prefer_ids, shape.models, shape.vendor) == (2, (3, 1), ("H100",), "nvidia")
    assert (shape.mode, shape.min_bandwidth_gbps, shape.exclusive) == ("Required", 600, True)
    assert shape.labels == (("disk", "ssd"), ("zone", "b"))


def test_share_becomes_a_request_and_a_holding() -> None:
    made = claim("c", exclusivity="Shared", share=250, memoryMiB=4096)
    found = claims.request(pod("p", claim="c"), made.spec).shape
    assert (found.exclusive, found.milli, found.memory_mib) == (False, 250, 4096)
    held = claims.bound(pod("p", node="a", claim="c", allocated="a:3"), made.spec)
    assert (held.devices, held.exclusive, held.milli, held.memory_mib) == ((3,), False, 250, 4096)


def test_allocation_for_another_node_does_not_count() -> None:
    assert claims.given(pod("p", node="a", allocated="b:0,1")) == ()
    assert claims.given(pod("p", node="a", allocated="a:0,1")) == (0, 1)
    assert claims.given(pod("p", node="a")) == ()
    assert claims.bound(pod("p", node="a", allocated="b:0,1"), None).devices == ()


def test_each_pod_of_a_template_gets_its_own_claim() -> None:
    first = pod("p" * 253, claim_template="t", meta={"uid": "11111111-aaaa"})
    again = pod("p" * 253, claim_template="t", meta={"uid": "22222222-aaaa"})
    assert claims.claim_name(first) != claims.claim_name(again)
    assert len(claims.claim_name(first)) <= 253
    assert claims.claim_name(pod("p", claim="c")) == "c"
    assert claims.claim_name(pod("p", gpus=1)) == ""
