"""What a claim needs, looked at as it and its pod are; and what a pod's claim comes to as a request."""

from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.binding.claim_writer import (
    ClaimWriter,
    Due,
    Refused,
    Reserved,
    due,
    released,
)
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from tests.support.scheduler_objects import claim, pod
from tests.support.scripted_transport import Scripted, answer, refusal

GIVEN = {"phase": "Bound"}
BOUND = pod("p", node="a", claim="c")
WAITING = pod("p", claim="c")
SERVED = claim("c", served="uid-p", status={"phase": "Bound", "podUID": "uid-p"})


@pytest.mark.parametrize(
    ("found", "server", "held", "wanted"),
    [
        pytest.param(claim("c"), None, False, None, id="kept for nobody"),
        pytest.param(claim("c", served="uid-p"), BOUND, True, Due(GIVEN), id="bound and not told"),
        pytest.param(SERVED, BOUND, True, None, id="bound and told"),
        pytest.param(SERVED, None, True, None, id="ended, devices still held"),
        pytest.param(SERVED, None, False, Due(released(SERVED), let_go=True), id="ended and free"),
        pytest.param(
            claim("c", served="uid-p", status={"phase": "Released"}),
            None,
            False,
            Due(None, let_go=True),
            id="told Released, not yet let go",
        ),
        pytest.param(
            claim("c", served="uid-p", deleting=True), None, False, Due(None, let_go=True), id="deleted child"
        ),
        pytest.param(claim("c", served="uid-p"), WAITING, False, None, id="kept for a pod that waits"),
        pytest.param(
            claim("c", served="uid-p", deleting=True),
            WAITING,
            False,
            Due(None, let_go=True),
            id="deleted while its pod waits",
        ),
        pytest.param(
            claim("c", served="uid-p", deleting=True),
            WAITING,
            True,
            None,
            id="deleted while its pod is bound",
        ),
        pytest.param(claim("c", served="uid-p", deleting=True), BOUND, True, Due(GIVEN), id="deleted in use"),
    ],
)
def test_due(found: GpuClaim, server: Pod | None, held: bool, wanted: Due | None) -> None:
    assert due(found, server, given=GIVEN, held=held) == wanted


@pytest.mark.parametrize(
    ("asking", "found", "script", "expected"),
    [
        pytest.param(WAITING, claim("c"), [answer({"metadata": {"name": "c"}})], Reserved(), id="free"),
        pytest.param(WAITING, claim("c", served="uid-p"), [], Reserved(), id="kept for it already"),
        pytest.param(
            WAITING,
            claim("c"),
            [refusal(409, "Conflict")],
            Refused("GpuClaim c changed in the meantime"),
            id="changed since it was read",
        ),
        pytest.param(
            pod("p", claim_template="t"),
            claim("t"),
            [refusal(409, "AlreadyExists"), answer(claim("p-uid-p", served="uid-p"))],
            Reserved(),
            id="its child was made before",
        ),
        pytest.param(
            pod("p", claim_template="t"),
            claim("t"),
            [refusal(409, "AlreadyExists"), answer(claim("p-uid-p", served="uid-q"))],
            Refused("GpuClaim p-uid-p exists and is not this pod's; delete it"),
            id="another pod's claim has the child's name",
        ),
    ],
)
async def test_reserve(
    asking: Pod, found: GpuClaim, script: list[Answer], expected: Reserved | Refused
) -> None:
    assert await ClaimWriter(Client(Scripted(*script))).reserve(asking, found) == expected


DEVICES: list[tuple[str, Any, Any, Any]] = [
    ("ids alone", (Device(2), Device(5)), "2,5", "0,1"),
    ("nvidia", (Device(2, "GPU-x", "nvidia"), Device(5, "GPU-y", "nvidia")), "GPU-x,GPU-y", "GPU-x,GPU-y"),
    ("amd", (Device(2, "GPU-x", "amd"), Device(5, "GPU-y", "amd")), "GPU-x,GPU-y", "0,1"),
    ("one unknown", (Device(2, "GPU-x", "nvidia"), Device(5, "", "nvidia")), "2,5", "0,1"),
]


@pytest.mark.parametrize(
    ("devices", "visible", "local"), [each[1:] for each in DEVICES], ids=[d[0] for d in DEVICES]
)
def test_answer(devices: tuple[Device, ...], visible: str, local: str) -> None:
    told = claims.answer(Placement("uid", "node-a", devices=(2, 5)), devices)
    assert told == {
        "gpu.scheduling/allocated": "node-a:2,5",
        "gpu.scheduling/visible-devices": visible,
        "gpu.scheduling/local-devices": local,
    }


def test_a_claim_as_a_request() -> None:
    asked = claim(
        "c",
        count=2,
        policy="preferIds",
        preferIds=[3, 1],
        model="H100",
        vendor="nvidia",
        topology={"mode": "Required", "minBandwidthGBps": 600},
        selector={"matchLabels": {"zone": "b"}},
    )
    found = claims.request(pod("p", claim="c", nodeSelector={"disk": "ssd"}, priority=7), asked.spec)
    shape = found.shape
    assert (found.key, found.priority, found.allocator, found.tenant) == ("uid-p", 7, "preferIds", "default")
    assert (shape.gpus, shape.prefer_ids, shape.models, shape.vendor) == (2, (3, 1), ("H100",), "nvidia")
    assert (shape.mode, shape.min_bandwidth_gbps, shape.exclusive) == ("Required", 600, True)
    assert shape.labels == (("disk", "ssd"), ("zone", "b"))


def test_a_share_as_a_request_and_as_held() -> None:
    asked = claim("c", exclusivity="Shared", share=250, memoryMiB=4096)
    found = claims.request(pod("p", claim="c"), asked.spec).shape
    assert (found.exclusive, found.milli, found.memory_mib) == (False, 250, 4096)
    held = claims.held(pod("p", node="a", claim="c", allocated="a:3"), asked.spec)
    assert held is not None
    assert (held.devices, held.exclusive, held.milli, held.memory_mib) == ((3,), False, 250, 4096)


def test_an_allocation_that_speaks_of_another_node_counts_for_nothing() -> None:
    assert claims.given(pod("p", node="a", allocated="b:0,1")) == ()
    assert claims.given(pod("p", node="a", allocated="a:0,1")) == (0, 1)
    assert claims.given(pod("p", node="a")) == ()
    held = claims.held(pod("p", node="a", allocated="b:0,1"), None)
    assert held is not None
    assert (held.devices, held.unnamed) == ((), 0)


def test_each_pod_has_a_child_of_its_own() -> None:
    first = pod("p" * 253, claim_template="t", meta={"uid": "11111111-aaaa"})
    again = pod("p" * 253, claim_template="t", meta={"uid": "22222222-aaaa"})
    assert claims.claim_name(first) != claims.claim_name(again)
    assert len(claims.claim_name(first)) <= 253
    assert claims.claim_name(pod("p", claim="c")) == "c"
    assert claims.claim_name(pod("p", gpus=1)) == ""
