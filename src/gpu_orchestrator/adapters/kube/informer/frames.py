"""Split a watch stream into events, one JSON line each. `Watch` feeds it chunks and decodes the objects."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer
from gpu_orchestrator.adapters.kube.transport import codec

MAX_FRAME_BYTES = 16 << 20


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event. `Watch` decodes the object by the event's type, because bookmarks and errors differ."""

    is_cut: ClassVar[bool] = False

    type: str
    object: msgspec.Raw


class CutFrame(Frame, frozen=True, gc=False):
    """An event whose object is nested too deep to decode. The deep values are cut out."""

    is_cut: ClassVar[bool] = True


class Frames:
    def __init__(self) -> None:
        self._partial = b""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > MAX_FRAME_BYTES:
            raise BadAnswer(f"an event of the watch is larger than {MAX_FRAME_BYTES >> 20} MiB")
        decode = codec.decoder(Frame).decode
        for line in lines:
            if line:
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    raise BadAnswer(f"an event of the watch is not JSON: {error}") from error
                except RecursionError:
                    yield _cut(line)

    def close(self) -> None:
        """End the stream. Raise LostAnswer if it ended in the middle of an event."""
        if self._partial:
            raise LostAnswer("the watch stream ended in the middle of an event")


def _cut(line: bytes) -> CutFrame:
    try:
        found: CutFrame = codec.decoder(CutFrame).decode(codec.without_deep(line))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"an event of the watch is not JSON: {error}") from error
    return found
