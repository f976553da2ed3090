"""How a placement of a pod is written into the leases of its devices."""

import pytest

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Hold, Holder, fits
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1023", 1023), ("1024", None), ("9" * 5000, None), ("٣", None), ("-1", None), ("", None)],
)
def test_device_id_is_read_within_bounds(text: str, expected: int | None) -> None:
    assert deviceleases.device_id(text) == expected


@pytest.mark.parametrize("name", ["gpu-a-" + "9" * 240, "gpu-a-1024", "gpu-a-٣", "gpu-a-01", "gpu-a-"])
def test_lease_with_an_impossible_number_is_no_device(name: str) -> None:
    meta = ObjectMeta(
        name, labels={"gpu.scheduling/managed": "true"}, annotations={"gpu.scheduling/node": "a"}
    )
    assert deviceleases.holds(Lease(meta)) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nonsense", id="not JSON"),
        pytest.param("[" * 10_000 + "]" * 10_000, id="too deep"),
        pytest.param(
            '[{"uid": "a", "more": ' + "[" * 5_000 + "]" * 5_000 + "}]", id="too deep, unknown field"
        ),
        pytest.param('[{"uid": "a", "share": -500}]', id="a negative share"),
        pytest.param('[{"uid": "a", "share": 1001}]', id="more than a device"),
        pytest.param('[{"uid": "a", "memoryMiB": 99999999999}]', id="more memory than can be counted"),
        pytest.param("[" + '{"uid":"a"},' * 30_000 + '{"uid":"a"}]', id="too long"),
        pytest.param('[{"uid": "\udcff"}]', id="not Unicode"),
    ],
)
def test_holders_that_cannot_be_read_hold_the_whole_device(text: str) -> None:
    about = {"gpu.scheduling/node": "a", "gpu.scheduling/holders": text}
    meta = ObjectMeta("gpu-a-0", labels={"gpu.scheduling/managed": "true"}, annotations=about)
    (hold,) = deviceleases.holds(Lease(meta, LeaseSpec("shared")))
    assert (hold.placement.devices, hold.placement.milli) == ((0,), 1000)


def held(*attempts: tuple[int, str]) -> list[Hold]:
    return [Hold(DeviceRef("a", device), Holder("p", since=since), True) for device, since in attempts]


@pytest.mark.parametrize(
    ("bound", "holds", "since"),
    [
        pytest.param((0, 1), held((0, "t1"), (1, "t1")), "t1", id="one attempt"),
        pytest.param((0,), held((0, "t1"), (1, "t2")), "t1", id="another scheduler tried as well"),
        pytest.param((0,), held((0, "t1"), (1, "t1")), "", id="a part of one attempt"),
        pytest.param((5,), held((0, "t1")), "", id="what no lease has"),
        pytest.param((), held((0, "t1")), "", id="nothing"),
    ],
)
def test_bound_attempt(bound: tuple[int, ...], holds: list[Hold], since: str) -> None:
    assert deviceleases.bound_attempt(bound, holds) == since
