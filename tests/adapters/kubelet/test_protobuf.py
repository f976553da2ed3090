"""Reading protobuf: what the kubelet sends, what a newer one may send, and bytes that are not a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kubelet import protobuf
from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices, decode
from gpu_orchestrator.adapters.kubelet.protobuf import BadMessage
from tests.support.kubelet_server import answer, field, varint


def test_devices_of_containers() -> None:
    given = [
        ("team", "train", [("nvidia.com/gpu", ["GPU-1", "GPU-2"]), ("example.com/nic", ["n0"])]),
        ("team", "idle", []),
    ]
    assert decode(answer(given)) == (
        GivenDevices("team", "train", "nvidia.com/gpu", ("GPU-1", "GPU-2")),
        GivenDevices("team", "train", "example.com/nic", ("n0",)),
    )


def test_fields_of_a_newer_kubelet_are_skipped() -> None:
    unknown = varint(99 << 3) + varint(7) + varint(98 << 3 | 1) + b"8" * 8 + varint(97 << 3 | 5) + b"4" * 4
    device = field(1, b"nvidia.com/gpu") + unknown + field(2, b"GPU-1") + field(77, b"?")
    pod = field(1, b"p") + field(2, b"n") + field(3, unknown + field(2, device))
    assert decode(unknown + field(1, pod)) == (GivenDevices("n", "p", "nvidia.com/gpu", ("GPU-1",)),)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x0a\x05abc", id="shorter than it says"),
        pytest.param(b"\xff" * 12, id="a number without end"),
        pytest.param(b"\x0b", id="a group, which nobody sends any more"),
    ],
)
def test_other_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        decode(message)
        protobuf.text(message, 1)
    except BadMessage:
        pass
