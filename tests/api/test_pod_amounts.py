"""Pods that ask for the same share one answer; what users can make arbitrarily large is not kept."""

import msgspec
import pytest

from gpu_orchestrator.api import names, pod_amounts
from gpu_orchestrator.api.pod import PodSpec
from gpu_orchestrator.api.quantity import BadQuantity


def spec(**requests: str) -> PodSpec:
    return msgspec.convert({"containers": [{"resources": {"requests": requests}}]}, PodSpec)


def test_equal_pods_share_one_answer() -> None:
    one, other = (
        pod_amounts.taken(spec(cpu="1", memory="1Gi")),
        pod_amounts.taken(spec(cpu="1", memory="1Gi")),
    )
    assert one is other
    assert one.resources == (("cpu", 1000), ("memory", 1 << 30), ("pods", 1))
    assert pod_amounts.taken(spec(cpu="2", memory="1Gi")) != one


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}, id="limit"),
        pytest.param({"initContainers": [{"resources": {"requests": {"cpu": "1"}}}]}, id="init container"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, id="of the pod"),
        pytest.param({"overhead": {"cpu": "1"}}, id="overhead"),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "9"}, "requests": {"cpu": "1"}}}]}, id="both"
        ),
    ],
)
def test_amount_counts_wherever_it_is_written(pod: object) -> None:
    taken = pod_amounts.taken(msgspec.convert(pod, PodSpec))
    assert taken == pod_amounts.Taken(0, (("cpu", 1000), ("pods", 1)), has_parts=False)


def test_pod_with_very_many_resources_is_counted_but_not_kept() -> None:
    names = [f"example.com/r{number}" for number in range(pod_amounts.MOST_TEXTS + 1)]
    kept = pod_amounts._taken.cache_info().currsize
    taken = pod_amounts.taken(spec(**dict.fromkeys(names, "1")))
    assert dict(taken.resources) == {**dict.fromkeys(names, 1), "pods": 1}
    assert pod_amounts._taken.cache_info().currsize == kept


def test_quantity_that_cannot_be_read_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(BadQuantity):
            pod_amounts.taken(spec(cpu="one"))


def test_milligpu_is_no_gpu_of_a_device_plugin() -> None:
    """Else a claimed pod would count as a device plugin's, and bar its own node."""
    taken = pod_amounts.taken(spec(**{names.MILLIGPU: "2k"}))
    assert taken == pod_amounts.Taken(0, ((names.MILLIGPU, 2000), ("pods", 1)), has_parts=False)
    assert not names.is_gpu_resource(names.MILLIGPU)
