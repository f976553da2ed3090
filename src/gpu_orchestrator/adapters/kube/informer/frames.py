"""Split a watch stream into events, one JSON line each. `Watch` feeds it chunks and decodes the objects."""

from collections.abc import Iterator

import msgspec

from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer
from gpu_orchestrator.adapters.kube.transport import codec

MAX_FRAME_BYTES = 16 << 20


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event. `Watch` decodes the object by the event's type, because bookmarks and errors differ."""

    type: str
    object: msgspec.Raw


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

    def close(self) -> None:
        """End the stream. Raise LostAnswer if it ended in the middle of an event."""
        if self._partial:
            raise LostAnswer("the watch stream ended in the middle of an event")
