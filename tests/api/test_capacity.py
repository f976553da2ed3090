"""How many thousandths of a GPU a claim counts for."""

import pytest

from gpu_orchestrator.api import capacity
from gpu_orchestrator.api.devices import DeviceWish


@pytest.mark.parametrize(
    ("wish", "count", "largest_mib", "expected"),
    [
        pytest.param(DeviceWish(), 1, 0, 1000, id="a whole device"),
        pytest.param(DeviceWish(), 8, 80_000, 8000, id="eight whole devices"),
        pytest.param(DeviceWish(exclusivity="Shared", share=250), 2, 0, 500, id="shares add up"),
        pytest.param(
            DeviceWish(exclusivity="Shared", share=250, memory_mib=70_000),
            1,
            80_000,
            875,
            id="share and memory: the larger part",
        ),
        pytest.param(
            DeviceWish(exclusivity="Shared", share=250, memory_mib=70), 1, 80_000, 250, id="or the share"
        ),
        pytest.param(
            DeviceWish(exclusivity="Shared", share=1, memory_mib=80_000), 8, 80_000, 8000, id="all the memory"
        ),
        pytest.param(
            DeviceWish(exclusivity="Shared", share=1, memory_mib=1), 1, 0, 1000, id="unknown memory"
        ),
        pytest.param(DeviceWish(exclusivity="Shared"), 1, 80_000, 1000, id="neither share nor memory"),
        pytest.param(DeviceWish(exclusivity="Shared", memory_mib=8_000), 1, 80_000, 100, id="memory alone"),
        pytest.param(DeviceWish(exclusivity="Shared", memory_mib=8_001), 1, 80_000, 101, id="is rounded up"),
        pytest.param(
            DeviceWish(exclusivity="Shared", memory_mib=90_000), 1, 80_000, 1000, id="at most a whole device"
        ),
        pytest.param(
            DeviceWish(exclusivity="Shared", memory_mib=1), 1, 0, 1000, id="unknown memory counts whole"
        ),
        pytest.param(DeviceWish(exclusivity="MIG", mig_profile="1g.10gb"), 1, 0, 142, id="a seventh"),
        pytest.param(
            DeviceWish(exclusivity="MIG", mig_profile="3g.40gb"), 2, 0, 856, id="two of three parts"
        ),
        pytest.param(DeviceWish(exclusivity="MIG", mig_profile="7g.80gb"), 1, 0, 1000, id="all seven parts"),
        pytest.param(DeviceWish(exclusivity="MIG", mig_profile="1c.3g.40gb"), 1, 0, 428, id="compute slice"),
    ],
)
def test_milligpu_of_a_claim(wish: DeviceWish, count: int, largest_mib: int, expected: int) -> None:
    assert capacity.milligpu(wish, count, largest_mib=largest_mib) == expected


def test_seven_slices_of_a_seventh_fit_one_device() -> None:
    slice_of_one = DeviceWish(exclusivity="MIG", mig_profile="1g.10gb")
    assert 7 * capacity.milligpu(slice_of_one, 1) <= capacity.WHOLE_DEVICE


def test_three_thirds_of_share_and_memory_fit_one_device() -> None:
    third = DeviceWish(exclusivity="Shared", share=333, memory_mib=27_306)
    assert 3 * capacity.milligpu(third, 1, largest_mib=81_920) <= capacity.WHOLE_DEVICE


def test_only_memory_of_a_share_needs_the_largest_device() -> None:
    assert capacity.needs_memory(DeviceWish(exclusivity="Shared", memory_mib=1))
    assert capacity.needs_memory(DeviceWish(exclusivity="Shared", memory_mib=1, share=1))
    assert not capacity.needs_memory(DeviceWish(exclusivity="Shared", share=1))
    assert not capacity.needs_memory(DeviceWish())
