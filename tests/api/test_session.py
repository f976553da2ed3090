"""Messages of the worker's session survive encoding, and unknown ones are refused."""

import msgspec
import pytest

from gpu_orchestrator.api import session


def test_frame_carries_many_messages_and_raw_parameters() -> None:
    parameters = b'{"prompt": "a  b", "n": 1.50}'
    sent = [
        session.Assign("t1", 2, "echo", msgspec.Raw(parameters), devices=(session.Given(0, "GPU-0"),)),
        session.Cancel("t2", 1),
    ]
    read = session.read_by_worker(session.frame(*sent))
    assert isinstance(read[0], session.Assign)
    assert bytes(read[0].parameters) == parameters
    assert read[0].devices == (session.Given(0, "GPU-0"),)
    assert read[1] == sent[1]


def test_hello_round_trip() -> None:
    hello = session.Hello(
        "gpu-box",
        "i-1",
        devices=(session.Device(0, "GPU-0", "nvidia", "H200", 143_771),),
        resume_epoch=7,
        running=(session.Attempt("t1", 1),),
    )
    assert session.read_by_server(session.frame(hello)) == [hello]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b'[{"type": "Welcome", "worker_id": "w"}]', id="the server's word"),
        pytest.param(b'[{"type": "Done", "task": "t"}]', id="no attempt"),
        pytest.param(b'{"type": "Renew", "number": 1}', id="no array"),
        pytest.param(b"[", id="no JSON"),
    ],
)
def test_message_that_no_worker_sends_is_refused(said: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        session.read_by_server(said)
