"""Parse one HTTP/1.1 answer of an API server. Does no I/O; `pooled.py` feeds it the bytes.

A body has a known length, comes in chunks, or ends with the connection. Its size is limited.
"""

import re

from gpu_orchestrator.adapters.kube.errors import BadAnswer
from gpu_orchestrator.adapters.kube.transport.base import Answer

MAX_HEAD = 64 << 10
# We read only these of the dozen header lines.
_WANTED = re.compile(rb"(?i)\r\n(content-length|transfer-encoding|connection|retry-after):([^\r\n]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;.*)?", re.DOTALL)


class Parser:
    """`feed` returns the answer once it is complete."""

    __slots__ = (
        "_body",
        "_chunked",
        "_headers",
        "_left",
        "_max_bytes",
        "_rest",
        "_size",
        "_status",
        "stays_open",
    )

    def __init__(self, max_bytes: int) -> None:
        self.stays_open = True
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._body: list[bytes] = []
        self._size = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._chunked = False
        self._left: int | None = None

    def feed(self, data: bytes) -> Answer | None:
        self._rest += data
        while not self._status:
            if not self._parse_head():
                return None
        if self._chunked:
            return self._parse_chunks()
        self._parse_rest()
        return self._answer() if self._left == 0 else None

    def end(self) -> Answer | None:
        """Handle the end of the connection: it completes only an answer without a length."""
        ends_here = self._status and not self._chunked and self._left is None
        return self._answer() if ends_here else None

    def _parse_head(self) -> bool:
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            _bound_head(len(self._rest))
            return False
        head = bytes(self._rest[:end])
        del self._rest[: end + 4]
        first = head[:60].partition(b"\r\n")[0].decode("latin-1")
        if not first.startswith("HTTP/1.") or not _LENGTH.fullmatch(first[9:12]):
            raise BadAnswer(f"not an HTTP answer: {first!r}; check the address and that it speaks HTTP")
        status = int(first[9:12])
        if status == 101:
            raise BadAnswer(
                "the server switches to another protocol (101) without a request for it; check the address"
            )
        if status < 200:
            return True  # 100 Continue and other 1xx heads come before the answer
        for name, value in _WANTED.findall(head):
            self._headers[name.decode("latin-1").title()] = value.decode("latin-1").strip()
        self._status = status
        self._choose_framing(first)
        return True

    def _choose_framing(self, first: str) -> None:
        connection = self._headers.get("Connection", "").lower()
        self.stays_open = "close" not in connection and first.startswith("HTTP/1.1")
        length = self._headers.get("Content-Length")
        if self._status in (204, 304):
            self._left = 0
        elif "chunked" in self._headers.get("Transfer-Encoding", "").lower():
            self._chunked = True
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise BadAnswer(f"the Content-Length of an answer is {length[:20]!r}, not a valid length")
            self._left = int(length)
            self._bound(self._left)
        else:
            self.stays_open = False

    def _parse_rest(self) -> None:
        count = len(self._rest) if self._left is None else min(self._left, len(self._rest))
        if count:
            self._keep(bytes(self._rest[:count]))
            del self._rest[:count]
        if self._left is not None:
            self._left -= count

    def _parse_chunks(self) -> Answer | None:
        at = 0
        try:
            while (line := self._rest.find(b"\r\n", at)) >= 0:
                size = _size(self._rest[at:line])
                self._bound(self._size + size)  # check the announced size before we store a byte
                end = line + 2 + size
                if size == 0:
                    return self._parse_trailer(line)
                if len(self._rest) < end + 2:
                    return None
                if self._rest[end : end + 2] != b"\r\n":
                    raise BadAnswer("a chunk of an answer is longer than its announced length")
                self._keep(bytes(self._rest[line + 2 : end]))
                at = end + 2
            _bound_head(len(self._rest) - at)
            return None
        finally:
            del self._rest[:at]

    def _parse_trailer(self, line: int) -> Answer | None:
        """Skip the header lines after the last chunk, up to the empty line."""
        if self._rest[line : line + 4] == b"\r\n\r\n" or self._rest.find(b"\r\n\r\n", line) >= 0:
            return self._answer()
        _bound_head(len(self._rest) - line)
        return None

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._bound(self._size)
        self._body.append(part)

    def _bound(self, size: int) -> None:
        if size > self._max_bytes:
            raise BadAnswer(f"an answer is larger than {self._max_bytes >> 20} MiB; ask for smaller pages")

    def _answer(self) -> Answer:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return Answer(self._status, body, self._headers)


def _bound_head(size: int) -> None:
    if size > MAX_HEAD:
        raise BadAnswer(f"the head of an answer or of its chunk is larger than {MAX_HEAD >> 10} KiB")


def _size(line: bytearray) -> int:
    found = _CHUNK.fullmatch(line)
    if found is None:
        raise BadAnswer(f"the length of a chunk is {bytes(line[:20])!r}, not a valid length")
    return int(found[1], 16)
