"""Server-sent events from the bytes of a connection, in whatever pieces they arrive. Pure."""

from typing import NamedTuple


class Sent(NamedTuple):
    """One event. One without name and data tells the position of the stream alone."""

    id: str
    name: str
    data: str


class Parser:
    def __init__(self) -> None:
        self._rest = b""
        self._id, self._name, self._data = "", "", list[str]()

    def feed(self, piece: bytes) -> list[Sent]:
        """Return the events that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [
            sent for line in lines if (sent := self._line(line.removesuffix(b"\r").decode(errors="replace")))
        ]

    def _line(self, line: str) -> Sent | None:
        if not line:
            return self._ended()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "id":
                self._id = value
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
        return None

    def _ended(self) -> Sent | None:
        sent = Sent(self._id, self._name, "\n".join(self._data))
        self._id, self._name, self._data = "", "", []
        return sent if any(sent) else None
