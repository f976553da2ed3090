"""Which gang a pod belongs to, by its annotations or its claim."""

from typing import Any

import pytest

from gpu_orchestrator.api import gangs
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.core.request import GangTerms
from tests.support.scheduler_objects import claim, pod


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
