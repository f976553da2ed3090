"""The difference of two JSON values as a patch."""

from typing import Any

import pytest
from hypothesis import given

from gpu_orchestrator.api import jsonpatch
from tests.support.json_patch import applied
from tests.support.pod_json import ANY_JSON, PODS


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="nothing changed"),
        pytest.param({}, {"a": [1]}, [{"op": "add", "path": "/a", "value": [1]}], id="new key"),
        pytest.param({"a": 1}, {}, [{"op": "remove", "path": "/a"}], id="key removed"),
        pytest.param({"a": None}, {"a": []}, [{"op": "replace", "path": "/a", "value": []}], id="null"),
        pytest.param(
            {"a": [{"b": 1}, {"b": 2}]},
            {"a": [{"b": 1}, {"b": 3}]},
            [{"op": "replace", "path": "/a/1/b", "value": 3}],
            id="deep inside a list",
        ),
        pytest.param([1, 2], [0, 1, 2], [{"op": "add", "path": "/0", "value": 0}], id="in front of a list"),
        pytest.param([1, 2, 3], [1, 3], [{"op": "remove", "path": "/1"}], id="out of a list"),
        pytest.param(
            {"requests": {}},
            {"requests": {"gpu.scheduling/milli~gpu": "1"}},
            [{"op": "add", "path": "/requests/gpu.scheduling~1milli~0gpu", "value": "1"}],
            id="names are escaped",
        ),
    ],
)
def test_patch_is_small(before: Any, after: Any, expected: list[Any]) -> None:
    assert jsonpatch.patch(before, after) == expected


def test_long_list_is_replaced_at_once() -> None:
    """One operation per item would cost the API server the square of their number."""
    before = list(range(100_000))
    (only,) = jsonpatch.patch({"a": before}, {"a": before[50_000:]})
    assert only["op"] == "replace"


@given(ANY_JSON, ANY_JSON)
def test_patch_of_any_values_makes_the_second_of_the_first(before: Any, after: Any) -> None:
    assert applied(jsonpatch.patch(before, after), before) == after


@given(PODS, PODS)
def test_patch_of_two_pods_makes_the_second_of_the_first(before: Any, after: Any) -> None:
    assert applied(jsonpatch.patch(before, after), before) == after
