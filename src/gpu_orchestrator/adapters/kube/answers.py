"""Reads HTTP/1.1 answers from the bytes of one connection: status, the few headers we use, the whole body."""

from gpu_orchestrator.adapters.kube.errors import BadAnswer
from gpu_orchestrator.adapters.kube.transport import Answer

MAX_HEAD = 64 << 10


class Reader:
    """`feed` gives an answer when one is whole. `keeps_open`: whether the server lets the connection live."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._length: int | None = None
        self._parts: list[bytes] | None = None
        self._size = 0
        self.keeps_open = True

    def feed(self, data: bytes) -> Answer | None:
        self._buffer += data
        if not self._status and not self._read_head():
            return None
        if self._parts is not None:
            return self._finish(b"".join(self._parts)) if self._read_chunks() else None
        length = self._length or 0
        if len(self._buffer) < length:
            return None
        if len(self._buffer) > length:
            raise BadAnswer("the server sent more than its answer")
        return self._finish(bytes(self._buffer))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadAnswer("the answer's head is larger than 64 KiB; is this an API server?")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        if not lines[0].startswith("HTTP/1.") or not lines[0][9:12].isdecimal():
            raise BadAnswer(f"the answer begins with {lines[0][:40]!r}; is this an API server?")
        self._status = int(lines[0][9:12])
        if self._status < 200:  # an interim answer: the real one follows
            self._status = 0
            return self._read_head()
        self._take_headers(lines)
        return True

    def _take_headers(self, lines: list[str]) -> None:
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().title()] = value.strip()
        self._headers = headers
        self.keeps_open = headers.get("Connection", "").lower() != "close" and lines[0].startswith("HTTP/1.1")
        if "chunked" in headers.get("Transfer-Encoding", "").lower():
            self._parts = []
        elif self._status in (204, 304):
            self._length = 0
        else:
            self._length = self._number(headers.get("Content-Length", ""), 10)
            self._check(self._length)

    def _read_chunks(self) -> bool:
        """Take what is whole; True after the last chunk."""
        parts = self._parts if self._parts is not None else []
        while (end := self._buffer.find(b"\r\n")) >= 0:
            size = self._number(self._buffer[:end].split(b";")[0].decode("latin-1").strip(), 16)
            start = end + 2
            if len(self._buffer) < start + size + 2:
                return False
            if size == 0:
                self._drop_trailer(start)
                return True
            parts.append(bytes(self._buffer[start : start + size]))
            self._size += size
            self._check(self._size)
            del self._buffer[: start + size + 2]
        return False

    def _drop_trailer(self, start: int) -> None:
        if self._buffer[start:] != b"\r\n":
            raise BadAnswer("the server sent more than its answer")

    def _number(self, text: str, base: int) -> int:
        try:
            found = int(text, base)
        except ValueError:
            found = -1
        if found < 0:
            raise BadAnswer(f"the answer's length is {text[:40]!r}; is this an API server?")
        return found

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise BadAnswer(f"the answer is larger than {self._max_bytes >> 20} MiB; ask for smaller pages")

    def _finish(self, body: bytes) -> Answer:
        answer = Answer(self._status, body, self._headers)
        self._buffer.clear()
        self._status, self._headers, self._length, self._parts, self._size = 0, {}, None, None, 0
        return answer
