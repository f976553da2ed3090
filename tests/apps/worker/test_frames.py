"""Frames are decoded whole, wherever the stream is split."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.worker import frames

runs = st.builds(
    frames.Run,
    task=st.text(max_size=20),
    attempt=st.integers(1, 1000),
    task_type=st.just("echo"),
    parameters=st.dictionaries(st.text(max_size=5), st.text(max_size=50)).map(
        lambda value: msgspec.Raw(msgspec.json.encode(value))
    ),
)


@given(st.lists(runs, max_size=8), st.data())
def test_split_stream_decodes_to_the_same_frames(sent: list[frames.Run], data: st.DataObject) -> None:
    stream = b"".join(frames.encode(run) for run in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = frames.read_by_runner()
    received: list[frames.ToRunner] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[start:end])
    assert [msgspec.json.encode(run) for run in received] == [msgspec.json.encode(run) for run in sent]
