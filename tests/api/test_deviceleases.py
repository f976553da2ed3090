"""How a placement of a pod is written into the leases of its devices."""

import pytest

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder, fits
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from tests.support.scheduler_objects import pod


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        pytest.param(Placement("uid-p", "a"), Holder("uid-p", "p", "default", since="t"), id="exclusive"),
        pytest.param(
            Placement("uid-p", "a", exclusive=False, milli=250, memory_mib=4096),
            Holder("uid-p", "p", "default", 250, 4096, "t"),
            id="shared",
        ),
    ],
)
def test_holder_of(placement: Placement, expected: Holder) -> None:
    assert deviceleases.holder_of(pod("p", gpus=1), placement, "t") == expected


def test_device_refs_carry_what_a_lease_needs() -> None:
    devices = (Device(0, "GPU-x", memory_mib=1000), Device(3))
    assert deviceleases.device_refs("a", devices) == [DeviceRef("a", 0, "GPU-x", 1000), DeviceRef("a", 3)]


@pytest.mark.parametrize(
    ("known", "new", "memory_mib", "expected"),
    [
        pytest.param([600], Holder("a", share=400), 0, True, id="shares add up to the device"),
        pytest.param([600], Holder("a", share=401), 0, False, id="one share too many"),
        pytest.param([], Holder("a", share=1, memory_mib=10), 10, True, id="all of the memory"),
        pytest.param([], Holder("a", share=1, memory_mib=11), 10, False, id="more than the memory"),
        pytest.param(
            [], Holder("a", share=1, memory_mib=1), 0, False, id="memory of a device of unknown size"
        ),
        pytest.param([1], Holder("a", share=1), 0, True, id="no memory asked for: size does not matter"),
    ],
)
def test_fits(known: list[int], new: Holder, memory_mib: int, expected: bool) -> None:
    held = [Holder(f"h{number}", share=share) for number, share in enumerate(known)]
    assert fits(held, new, memory_mib) is expected
