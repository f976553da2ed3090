"""The lines of a watch stream: cuts chunks of bytes into events, without looking into their objects."""

from collections.abc import Iterator

import msgspec

from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer
from gpu_orchestrator.adapters.kube.transport import codec

MAX_FRAME_BYTES = 16 << 20


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event; its object is decoded only when its type is known, as bookmarks and errors differ."""

    type: str
    object: msgspec.Raw


class Frames:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_FRAME_BYTES:
            raise BadAnswer(f"an event of the watch is larger than {MAX_FRAME_BYTES >> 20} MiB")
        decode = codec.decoder(Frame).decode
        for line in lines:
            if line:
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    raise BadAnswer(f"an event of the watch is not JSON: {error}") from error

    def close(self) -> None:
        """The stream ended; raises LostAnswer if that was in the midst of an event."""
        if self._rest:
            raise LostAnswer("the watch ended in the midst of an event")
