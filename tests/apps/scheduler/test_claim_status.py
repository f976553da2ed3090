"""What a claim shows, given its state and its pod's."""

from typing import Any

import pytest

from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.binding.claim_status import (
    Claimant,
    Due,
    Given,
    bound,
    due,
    health,
    released,
    unbound,
)
from gpu_orchestrator.core.answer import Placement
from tests.support.scheduler_objects import claim, pod

NOW, EARLIER = "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"
GIVEN = {"phase": "Bound"}
BOUND = pod("p", node="a", claim="c")
WAITING = pod("p", claim="c")
RESERVED = claim("c", reserved_for="uid-p", status={"phase": "Bound", "podUID": "uid-p"})


@pytest.mark.parametrize(
    ("found", "user", "held", "wanted"),
    [
        pytest.param(claim("c"), None, False, None, id="not reserved"),
        pytest.param(
            claim("c", reserved_for="uid-p"), BOUND, True, Due(GIVEN), id="bound, status not written"
        ),
        pytest.param(RESERVED, BOUND, True, None, id="bound, status written"),
        pytest.param(RESERVED, None, True, None, id="ended, devices still held"),
        pytest.param(RESERVED, None, False, Due(released(RESERVED, NOW), release=True), id="ended and free"),
        pytest.param(
            claim("c", reserved_for="uid-p", status={"phase": "Released"}),
            None,
            False,
            Due(None, release=True),
            id="Released, reservation not yet removed",
        ),
        pytest.param(
            claim("c", reserved_for="uid-p", deleting=True),
            None,
            False,
            Due(None, release=True),
            id="deleted child",
        ),
        pytest.param(
            claim("c", reserved_for="uid-p"), WAITING, False, None, id="reserved for a pod that waits"
        ),
        pytest.param(
            claim("c", reserved_for="uid-p", deleting=True),
            WAITING,
            False,
            Due(None, release=True),
            id="deleted while its pod waits",
        ),
        pytest.param(
            claim("c", reserved_for="uid-p", deleting=True),
            WAITING,
            True,
            None,
            id="deleted while its pod is bound",
        ),
        pytest.param(
            claim("c", reserved_for="uid-p", deleting=True), BOUND, True, Due(GIVEN), id="deleted in use"
        ),
    ],
)
def test_due(found: GpuClaim, user: Pod | None, held: bool, wanted: Due | None) -> None:
    assert due(found, user, given=GIVEN, held=held, now=NOW) == wanted


FULL = Claimant("p", "0/1 nodes fit: 1 has fewer than 4 free GPUs")
TELLS_FULL = "pod p waits: 0/1 nodes fit: 1 has fewer than 4 free GPUs"
MIG = "devices.exclusivity MIG"


@pytest.mark.parametrize(
    ("shown", "claimant", "problem", "wanted"),
    [
        pytest.param({}, None, "", None, id="no pod names it"),
        pytest.param({}, None, MIG, None, id="no pod names it, and none ever will be served"),
        pytest.param({}, Claimant("p"), "", None, id="not decided yet"),
        pytest.param({}, FULL, "", ("Pending", "Waiting", TELLS_FULL), id="its pod waits"),
        pytest.param(
            {"phase": "Pending", "message": TELLS_FULL}, FULL, "", None, id="its pod waits as before"
        ),
        pytest.param(
            {"phase": "Pending", "message": "pod p waits: the node is cordoned"},
            FULL,
            "",
            ("Pending", "Waiting", TELLS_FULL),
            id="its pod has another reason to wait",
        ),
        pytest.param(
            {"phase": "Pending", "message": TELLS_FULL},
            Claimant("p"),
            "",
            None,
            id="the reason is decided anew",
        ),
        pytest.param(
            {"phase": "Released", "message": "can be used again"},
            FULL,
            "",
            ("Pending", "Waiting", TELLS_FULL),
            id="used again",
        ),
        pytest.param(
            {"phase": "Pending", "message": TELLS_FULL},
            Claimant("p", is_binding=True),
            "",
            ("Reserved", "Binding", "devices were chosen; pod p is being bound"),
            id="its pod's bind takes long",
        ),
        pytest.param(
            {"phase": "Reserved"},
            Claimant("p"),
            "",
            ("Pending", "Waiting", "pod p waits: it is scheduled again"),
            id="the bind failed",
        ),
        pytest.param(
            {"phase": "Pending", "message": TELLS_FULL},
            None,
            "",
            ("Pending", "Unused", "no pod uses it"),
            id="its pod was deleted",
        ),
        pytest.param(
            {},
            FULL,
            MIG,
            ("Failed", "Unsupported", f"no node has {MIG}; create another GpuClaim"),
            id="never served",
        ),
    ],
)
def test_claim_without_a_bound_pod(
    shown: Any, claimant: Claimant | None, problem: str, wanted: tuple[str, str, str] | None
) -> None:
    found = unbound(claim("c", status=shown), claimant, problem=problem, now=NOW)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    (condition,) = found["conditions"]
    assert (found["phase"], condition["reason"], found["message"]) == wanted
    assert (condition["type"], condition["status"]) == ("Allocated", "False")
    assert found["gpuIds"] is found["podUID"] is None


def test_condition_keeps_its_time_until_it_changes() -> None:
    was = {"type": "Allocated", "status": "False", "lastTransitionTime": EARLIER}
    waiting = claim("c", status={"phase": "Pending", "conditions": [was]})
    still = unbound(waiting, FULL, problem="", now=NOW)
    assert still is not None
    assert still["conditions"][0]["lastTransitionTime"] == EARLIER
    given = bound(BOUND, waiting, Given(Placement("uid-p", "a", devices=(1, 0))), now=NOW)
    assert (given["gpuIds"], given["allocated"]) == ([1, 0], "a:1,0")
    assert given["conditions"][0]["lastTransitionTime"] == NOW


def test_released_claim_says_that_it_has_no_devices() -> None:
    (condition,) = released(RESERVED, NOW)["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Allocated", "False", "Released")


def test_status_and_condition_name_the_generation_they_speak_of() -> None:
    found = released(claim("c", reserved_for="uid-p", generation=3), NOW)
    assert found["observedGeneration"] == found["conditions"][0]["observedGeneration"] == 3


@pytest.mark.parametrize(
    ("unenforced", "wanted"),
    [("", ("True", "Mps")), ("the pod was not prepared", ("False", "AccountedOnly"))],
)
def test_shared_claim_says_whether_something_holds_its_share(unenforced: str, wanted: Any) -> None:
    given = Given(Placement("uid-p", "a", devices=(0,)), unenforced=unenforced)
    shared = bound(BOUND, claim("c", exclusivity="Shared", share=500), given, now=NOW)["conditions"]
    assert [each["type"] for each in shared] == ["Allocated", "ShareEnforced"]
    assert (shared[1]["status"], shared[1]["reason"]) == wanted
    assert unenforced in shared[1]["message"]
    whole = bound(BOUND, claim("c"), given, now=NOW)["conditions"]
    assert [each["type"] for each in whole] == ["Allocated"]


def test_health_is_told_when_it_changes_and_other_conditions_stay() -> None:
    allocated = {"type": "Allocated", "status": "True", "lastTransitionTime": EARLIER}
    healthy = claim("c", status={"phase": "Bound", "conditions": [allocated]})
    assert health(healthy, "", NOW) is None
    told = health(healthy, "device 1 is unhealthy", NOW)
    assert told is not None
    kept, unhealthy = told["conditions"]
    assert kept == allocated
    assert (unhealthy["type"], unhealthy["status"]) == ("DevicesHealthy", "False")
    sick = claim("c", status={"phase": "Bound", "conditions": told["conditions"]})
    assert health(sick, "device 1 is unhealthy", NOW) is None
    recovered = health(sick, "", NOW)
    assert recovered is not None
    assert recovered["conditions"][1]["status"] == "True"
    assert health(claim("c", status={"phase": "Released"}), "device 1 is unhealthy", NOW) is None
