"""Events come out complete, however the network splits the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer
from gpu_orchestrator.adapters.kube.informer.frames import Frames
from tests.support.kube_objects import config_map
from tests.support.scripted_transport import event

WHOLE = b"".join(event("ADDED", config_map(f"x{number}", text="é\n")) for number in range(5))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20))
def test_stream_split_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(WHOLE)]
    frames = Frames()
    seen = [bytes(frame.object) for start, end in pairwise(places) for frame in frames.feed(WHOLE[start:end])]
    frames.close()
    assert seen == [bytes(frame.object) for frame in Frames().feed(WHOLE)]
    assert len(seen) == 5


def test_end_inside_an_event_raises_lost_answer() -> None:
    frames = Frames()
    assert len(list(frames.feed(WHOLE[:-1]))) == 4
    with pytest.raises(LostAnswer):
        frames.close()


def test_line_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadAnswer):
        list(Frames().feed(b"<html>\n"))


def test_event_over_16_mib_is_refused() -> None:
    frames = Frames()
    list(frames.feed(b"x" * (16 << 20)))
    with pytest.raises(BadAnswer, match="larger than 16 MiB"):
        list(frames.feed(b"x"))
