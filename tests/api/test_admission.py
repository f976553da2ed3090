"""What the webhook makes of pods: claimed ones, and those in a namespace that hides GPUs."""

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import admission, deviceenv, jsonpatch, names
from gpu_orchestrator.api.admission import Denied, NamedClaim, WholeGpus
from gpu_orchestrator.api.pod import PodSpec
from tests.support.json_patch import applied
from tests.support.pod_json import ANY_JSON, PODS, Json, pod

OURS: list[Json] = deviceenv.confined({})["env"]
COUNT = {names.MILLIGPU: "2000"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
LITERALS = [{"name": name, "value": "all"} for name in names.DEVICE_ENV]
SAFE, DISRUPT = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
PATH = {"name": "PATH", "value": "$(CUDA_VISIBLE_DEVICES)"}


def filled(**spec: Any) -> Json:
    """Return the spec of a claimed pod after filling in."""
    found: Json = admission.filled(pod(**spec), 2000)["spec"]
    return found


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({names.ALLOCATED: "a:0", "gpu.scheduling/gang": "x"}, None, id="others do not ask"),
        pytest.param({names.GPUS: "2"}, WholeGpus(2), id="whole GPUs"),
        pytest.param({names.CLAIM: "train"}, NamedClaim("train"), id="a claim"),
        pytest.param({names.CLAIM_TEMPLATE: "t"}, NamedClaim("t", is_template=True), id="a template"),
    ],
)
def test_asked(annotations: dict[str, str], expected: object) -> None:
    assert admission.asked(pod(annotations=annotations)) == expected
    assert admission.is_claimed(pod(annotations=annotations)) == (expected is not None)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param({names.GPUS: "two"}, "'two'; write a number from 1 to 64", id="no number"),
        pytest.param({names.GPUS: "0"}, "write a number from 1 to 64", id="none"),
        pytest.param({names.GPUS: "0", names.GANG: ""}, "write a number from 1 to 64", id="none, in no gang"),
        pytest.param(
            {names.GPUS: "-1", names.GANG: "g"}, "write a number from 0 to 64", id="fewer than none"
        ),
        pytest.param({names.GPUS: "65"}, "write a number from 1 to 64", id="too many"),
        pytest.param({names.GPUS: "9" * 5000}, "write a number", id="very long"),
        pytest.param({names.GPUS: ["2"]}, "write a number", id="of another type"),
        pytest.param({names.CLAIM: ""}, "write the name of a GpuClaim", id="empty name"),
        pytest.param({names.CLAIM: "../secrets"}, "write the name of a GpuClaim", id="a path"),
        pytest.param({names.CLAIM: None}, "write the name of a GpuClaim", id="null"),
        pytest.param({names.CLAIM: "a", names.GPUS: "1"}, "in 2 ways", id="two ways"),
    ],
)
def test_request_that_cannot_be_read_is_denied_with_advice(annotations: Json, words: str) -> None:
    denied = admission.asked(pod(annotations=annotations))
    assert isinstance(denied, Denied)
    assert words in denied.why
    assert len(denied.why) < 300


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        (None, "gpu-scheduler"),
        ("", "gpu-scheduler"),
        ("default-scheduler", "gpu-scheduler"),
        ("mine", "mine"),
    ],
)
def test_scheduler_name_replaces_the_default_only(given_name: str | None, expected: str) -> None:
    assert filled(schedulerName=given_name)["schedulerName"] == expected


@pytest.mark.parametrize("kind", admission.CONTAINERS)
@pytest.mark.parametrize("env", [None, [], [PATH], [*LITERALS, PATH], [PATH, *LITERALS, *LITERALS]])
def test_device_variables_come_first_and_replace_others(kind: str, env: list[Json] | None) -> None:
    for found in filled(**{kind: [{"name": "a", "env": env}, {"name": "b", "env": env}]})[kind]:
        assert found["env"] == [*OURS, *([PATH] if env and PATH in env else [])]


def test_capacity_is_requested_by_the_first_container_alone() -> None:
    wrong = {"requests": {names.MILLIGPU: "1", "cpu": "1"}, "limits": {names.MILLIGPU: "7"}}
    found = filled(
        containers=[{"resources": wrong}, {"resources": wrong}, {"name": "c"}],
        initContainers=[{"resources": wrong}],
    )
    first, second, third = found["containers"]
    assert first["resources"] == {"requests": {**COUNT, "cpu": "1"}, "limits": COUNT}
    assert second["resources"] == {"requests": {"cpu": "1"}, "limits": {}}
    assert "resources" not in third
    assert found["initContainers"][0]["resources"] == second["resources"]


def test_tolerations_are_added_unless_they_are_there() -> None:
    own = [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "amd.com/gpu", "operator": "Equal"}]
    found = filled(tolerations=own)["tolerations"]
    assert found == own + [
        {"key": key, "operator": "Exists"}
        for key in ("amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
    ]


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({}, id="nothing"),
        pytest.param({SAFE: "true"}, id="may be moved"),
        pytest.param({SAFE: "true", DISRUPT: "30m"}, id="both"),
        pytest.param({SAFE: "", DISRUPT: None}, id="empty values"),
    ],
)
def test_autoscalers_leave_a_claimed_pod_alone_unless_its_author_says_something(own: Json) -> None:
    asks = {names.GPUS: "2", **own}
    found = admission.filled(pod(annotations=asks), 2000)["metadata"]["annotations"]
    assert found == {SAFE: "false", DISRUPT: "true", **asks}


def test_scheduler_accepts_what_was_filled_in() -> None:
    made = filled(containers=[{"name": "a"}, {"name": "b", "env": LITERALS}], initContainers=[{"name": "c"}])
    assert deviceenv.unconfined(msgspec.convert(made, PodSpec)) == ""


def test_ephemeral_containers_are_filled_in_and_nothing_else() -> None:
    before = pod(ephemeralContainers=[{"name": "old", "env": LITERALS}])
    after = deepcopy(before)
    after["spec"]["ephemeralContainers"].append({"name": "debugger", "env": LITERALS})
    found = admission.filled_ephemeral(after, before)
    assert found["spec"]["ephemeralContainers"] == [
        {"name": "old", "env": LITERALS},
        {"name": "debugger", "env": OURS},
    ]
    assert {**found["spec"], "ephemeralContainers": ()} == {**after["spec"], "ephemeralContainers": ()}


def test_hidden_pod_sees_no_gpu_in_any_container() -> None:
    found = admission.hidden(pod(initContainers=[{"env": [PATH, *LITERALS[:1]]}], ephemeralContainers=[{}]))
    assert [each["env"] for kind in admission.CONTAINERS for each in found["spec"][kind]] == [
        [VOID, PATH],
        [VOID],
        [VOID],
    ]


def test_new_ephemeral_containers_of_a_hidden_pod_see_no_gpu() -> None:
    before = pod(ephemeralContainers=[{"name": "old"}])
    after = pod(ephemeralContainers=[{"name": "old"}, {"name": "new"}])
    found = admission.hidden_ephemeral(after, before)["spec"]
    assert found["ephemeralContainers"] == [{"name": "old"}, {"name": "new", "env": [VOID]}]
    assert found["containers"] == after["spec"]["containers"]


def test_claimed_pod_is_not_hidden() -> None:
    claimed = pod(annotations={names.GPUS: "1"}, ephemeralContainers=[{"name": "new"}])
    assert admission.hidden(claimed) is claimed
    assert admission.hidden_ephemeral(claimed, {}) is claimed


def every_change(found: Any, before: Any, milligpu: int) -> list[Any]:
    return [
        admission.filled(found, milligpu),
        admission.filled_ephemeral(found, before),
        admission.hidden(found),
        admission.hidden_ephemeral(found, before),
    ]


@given(PODS, PODS | st.just({}), st.integers(1, 64_000))
def test_any_pod_is_changed_without_error_and_once(found: Json, before: Json, milligpu: int) -> None:
    admission.asked(found)
    kept = deepcopy(found)
    for at, changed in enumerate(every_change(found, before, milligpu)):
        assert every_change(changed, before, milligpu)[at] == changed
        patch = jsonpatch.patch(found, changed)
        assert applied(patch, found) == changed
        assert jsonpatch.patch(changed, every_change(changed, before, milligpu)[at]) == []
    assert found == kept


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), ANY_JSON))
def test_any_json_is_no_error(found: Json) -> None:
    admission.asked(found)
    every_change(found, found, 1)
