"""Frames of bounded size: what is put in at one end comes out at the other, whatever its size, and small
messages do not wait for large ones."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import pieces, session
from gpu_orchestrator.api.pieces import PIECE, WHOLE, FrameLink, Window


def linked(*, knows_pieces: bool = True) -> FrameLink:
    made = FrameLink()
    made.pieces = knows_pieces
    return made


def done(task: str, size: int) -> session.Done:
    return session.Done(task, 1, msgspec.Raw(b'"' + b"x" * size + b'"'))


def carry(sender: FrameLink, receiver: FrameLink) -> tuple[list[session.ToServer], list[bytes]]:
    """Carry frames both ways until both ends are silent; return the messages and the sender's frames."""
    messages: list[session.ToServer] = []
    frames: list[bytes] = []
    while (frame := sender.next(0.0)) is not None:
        frames.append(frame)
        if (whole := receiver.receive(frame, 0.0)) is not None:
            messages += session.read_by_server(whole)
        while (back := receiver.next(0.0)) is not None:
            assert sender.receive(back, 0.0) is None
    return messages, frames


def logs(sizes: list[tuple[int, int]]) -> list[session.Message]:
    """A message of each (task, size), numbered so that their order can be seen."""
    return [session.Log(f"t{task}", 1, number, "\x01" * size) for number, (task, size) in enumerate(sizes)]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 5000, 20_000, 70_000])), max_size=12))
def test_all_messages_arrive_in_bounded_frames_and_in_order_of_their_attempt(
    sizes: list[tuple[int, int]],
) -> None:
    """The text is of control characters, which are six bytes each on the wire: larger than it seems."""
    sent = logs(sizes)
    sender = linked()
    for message in sent:
        sender.put(message)
    received, frames = carry(sender, linked())
    assert sorted(received, key=lambda each: each.at) == sent  # type: ignore[union-attr]
    for task in {each.task for each in sent}:  # type: ignore[attr-defined]
        order = [each.at for each in received if each.task == task]  # type: ignore[union-attr]
        assert order == sorted(order)
    assert all(len(frame) <= WHOLE for frame in frames)


def test_renewal_goes_between_the_pieces_of_a_large_result() -> None:
    sender = linked()
    sender.put(done("large", 8 << 20))
    assert (sender.next(0.0) or b"")[:1] == pieces.MORE
    sender.put(session.Renew(1))
    assert sender.next(0.0) == session.frame(session.Renew(1))


def test_stream_of_small_messages_does_not_hold_up_a_large_one() -> None:
    sender, kinds = linked(), []
    sender.put(done("large", 4 * PIECE))
    sender.put(session.Renew(0))
    for number in range(1, 7):
        kinds.append((sender.next(0.0) or b"")[:1])
        if number > 1:
            sender.put(session.Renew(number))
    assert kinds == [b"[", b"+", b"[", b"+", b"[", b"["], "until the window is full"


def test_few_pieces_are_under_way_at_once() -> None:
    sender = linked()
    sender.put(done("large", 8 << 20))
    under_way = 0
    while sender.next(0.0) is not None:
        under_way += 1
    assert under_way == pieces.FIRST_WINDOW
    sender.receive(pieces.ARRIVED, 0.01)
    assert sender.next(0.01) is not None


def test_outcome_waits_for_what_its_attempt_printed() -> None:
    sender = linked()
    sender.put(session.Log("a", 1, 0, "x" * 3 * PIECE))
    first = sender.next(0.0)
    sender.put(done("a", 1))
    sender.put(done("b", 1))
    assert sender.next(0.0) == session.frame(done("b", 1))
    sender_rest, receiver = [first], linked()
    assert receiver.receive(sender_rest[0] or b"", 0.0) is None
    sender.receive(pieces.ARRIVED, 0.0)
    received, _ = carry(sender, receiver)
    assert [type(each) for each in received] == [session.Log, session.Done]


def test_other_side_without_pieces_gets_large_messages_whole_and_alone() -> None:
    """A worker of the previous version takes frames of up to 64 MiB: ten tasks of 8 MB must not share one."""
    sender = linked(knows_pieces=False)
    for number in range(10):
        sender.put(done(f"t{number}", 8_300_000))
    _, frames = carry(sender, linked())
    assert [len(session.read_by_server(frame)) for frame in frames] == [1] * 10


def test_message_without_end_is_refused() -> None:
    receiver = FrameLink(largest=3 * PIECE)
    for _ in range(3):
        assert receiver.receive(pieces.MORE + b"x" * PIECE, 0.0) is None
    with pytest.raises(msgspec.ValidationError, match="more than"):
        receiver.receive(pieces.MORE + b"x", 0.0)


def test_window_grows_on_a_quick_link_and_shrinks_on_a_slow_one() -> None:
    window = Window()
    for number in range(100):
        window.sent(number)
        window.arrived(number + 0.01)
    assert window.size == pieces.LARGEST_WINDOW
    for number in range(10):
        window.sent(number)
        window.arrived(number + 1.0)
    assert window.size == 1
    assert window.is_open
