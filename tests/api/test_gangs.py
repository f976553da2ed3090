"""Which gang a pod belongs to, by its annotations, its claim or its PodGroup."""

from typing import Any

import pytest

from gpu_orchestrator.api import gangs
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.core.request import GangTerms
from tests.support.scheduler_objects import claim, pod, pod_group


def terms(annotations: dict[str, str], **spec: Any) -> GangTerms | None:
    made = pod("p", gpus=1, **{name.replace("-", "_"): text for name, text in annotations.items()})
    return gangs.terms(made, claim("c", **spec).spec if spec else None)


@pytest.mark.parametrize(
    ("annotations", "spec", "wanted"),
    [
        pytest.param({}, {}, None, id="single"),
        pytest.param({"gang": "g", "gang-size": "4"}, {}, GangTerms("default/g", 4), id="annotations"),
        pytest.param(
            {"gang": "g", "gang-size": "4", "gang-min": "2"}, {}, GangTerms("default/g", 2), id="least"
        ),
        pytest.param({}, {"gangRef": "g", "gangSize": 3}, GangTerms("default/g", 3), id="claim"),
        pytest.param(
            {"gang": "own", "gang-size": "2"},
            {"gangRef": "g", "gangSize": 3},
            GangTerms("default/own", 2),
            id="the pod's own word comes first",
        ),
        pytest.param({"gang-size": "2"}, {"gangRef": "g"}, GangTerms("default/g", 2), id="size by the pod"),
        pytest.param(
            {"gang": "g", "gang-size": "2", "topology-required": "rack", "topology-preferred": "row"},
            {},
            GangTerms("default/g", 2, "rack", "row"),
            id="domains",
        ),
    ],
)
def test_terms(annotations: dict[str, str], spec: dict[str, Any], wanted: GangTerms | None) -> None:
    assert terms(annotations, **spec) == wanted


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        pytest.param(
            {"gang": "g"}, "gang g has no size; add the annotation gpu.scheduling/gang-size", id="size"
        ),
        pytest.param({"gang": "g", "gang-size": "0"}, "'0'; write a number from 1 to 4096", id="zero"),
        pytest.param({"gang": "g", "gang-size": "9" * 99}, "write a number from 1 to 4096", id="endless"),
        pytest.param({"gang": "g", "gang-size": "٤"}, "write a number from 1 to 4096", id="other digits"),
        pytest.param(
            {"gang": "g", "gang-size": "2", "gang-min": "3"},
            "gang-min is 3, and the gang has 2 members; write a number from 1 to 2",
            id="more than there are",
        ),
        pytest.param({"gang-size": "2"}, "gang-size is for members of a gang", id="size without a gang"),
        pytest.param(
            {"topology-required": "rack"}, "add the annotation gpu.scheduling/gang", id="domain alone"
        ),
    ],
)
def test_bad_terms_say_what_to_write(annotations: dict[str, str], says: str) -> None:
    with pytest.raises(BadGpuRequest, match=says.replace("(", r"\(")):
        terms(annotations)


def test_two_long_names_that_begin_alike_are_two_gangs() -> None:
    found = [terms({"gang": f"{'g' * 1000}{at}", "gang-size": "2"}) for at in "12"]
    assert None not in found
    assert len({each.name for each in found if each}) == 2
    assert all(len(each.name) < 120 for each in found if each)


RACK: dict[str, Any] = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
NATIVE = "default/g (PodGroup)"


def grouped(group: PodGroup | None, annotations: dict[str, str], **spec: Any) -> GangTerms | None:
    given = {name.replace("-", "_"): text for name, text in annotations.items()}
    made = pod("p", gpus=1, schedulingGroup={"podGroupName": "g"}, **given)
    return gangs.terms(made, claim("c", **spec).spec if spec else None, group)


@pytest.mark.parametrize(
    ("group", "annotations", "spec", "wanted"),
    [
        pytest.param(pod_group("g", 3), {}, {}, GangTerms(NATIVE, 3), id="gang"),
        pytest.param(pod_group("g", 3, **RACK), {}, {}, GangTerms(NATIVE, 3, "rack"), id="one rack"),
        pytest.param(pod_group("g", None), {}, {}, None, id="one by one"),
        pytest.param(
            pod_group("g", None, **RACK), {}, {}, GangTerms(NATIVE, 1, "rack"), id="one by one in a rack"
        ),
        pytest.param(
            pod_group("g", 3), {"topology-preferred": "zone"}, {}, GangTerms(NATIVE, 3, "", "zone"), id="near"
        ),
        pytest.param(
            pod_group("g", 3), {"topology-required": "zone"}, {}, GangTerms(NATIVE, 3, "zone"), id="both"
        ),
        pytest.param(
            pod_group("g", 3),
            {"gang": "g", "gang-size": "5", "gang-min": "3"},
            {},
            GangTerms(NATIVE, 3),
            id="annotations that say the same",
        ),
        pytest.param(
            pod_group("g", 3), {}, {"gangRef": "g", "gangSize": 3}, GangTerms(NATIVE, 3), id="claim likewise"
        ),
    ],
)
def test_pod_group_gives_the_terms(
    group: PodGroup, annotations: dict[str, str], spec: dict[str, Any], wanted: GangTerms | None
) -> None:
    assert grouped(group, annotations, **spec) == wanted


@pytest.mark.parametrize(
    ("group", "annotations", "spec", "message"),
    [
        pytest.param(None, {}, {}, "PodGroup default/g does not exist", id="none"),
        pytest.param(pod_group("g", 0), {}, {}, "minCount of PodGroup g is 0; write a number", id="no pods"),
        pytest.param(pod_group("g", 5000), {}, {}, "write a number from 1 to 4096", id="too many"),
        pytest.param(
            pod_group("g", 3), {"gang": "h", "gang-size": "3"}, {}, "name gang h, of which 3 do", id="other"
        ),
        pytest.param(
            pod_group("g", 3),
            {"gang": "g", "gang-size": "4"},
            {},
            "in PodGroup g, of which 3 pods start together, and its annotations or its claim name gang g, of "
            "which 4 do; remove them",
            id="other number",
        ),
        pytest.param(
            pod_group("g", None), {"gang": "g", "gang-size": "4"}, {}, "of which 1 pods start", id="no gang"
        ),
        pytest.param(pod_group("g", 3), {}, {"gangRef": "h", "gangSize": 3}, "name gang h", id="claim"),
        pytest.param(pod_group("g", 3), {"gang-size": "3"}, {}, "is for members of a gang", id="no name"),
        pytest.param(
            pod_group("g", 3, **RACK),
            {"topology-required": "zone"},
            {},
            "wants all its pods in one rack",
            id="rack",
        ),
        pytest.param(
            pod_group("g", 3, schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}),
            {},
            {},
            "has 2 topology constraints; this scheduler takes one",
            id="two constraints",
        ),
    ],
)
def test_what_disagrees_with_the_pod_group_is_refused(
    group: PodGroup | None, annotations: dict[str, str], spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadGpuRequest, match=message):
        grouped(group, annotations, **spec)
