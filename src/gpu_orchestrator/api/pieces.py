"""Frames of bounded size for the WebSocket between worker and manager. Both sides keep one `FrameLink` per
connection; it is pure: the caller reads and writes the socket.

A frame of messages has at most about `WHOLE` bytes. A larger message travels in pieces, and messages of other
attempts travel between them, renewals above all: on a slow link a lease must not expire because of a large
result. The receiver acknowledges every piece, and only a few are under way at once. Otherwise the buffers of
kernels and proxies would take in megabytes, and a renewal would wait behind them.

The first byte of a frame says what it is:

    [   messages, as JSON         +   a piece, more follow
    -   one piece has arrived     .   the last piece: all together are a frame of messages

A side that does not know pieces (see `Hello.pieces` and `Welcome.pieces`) gets large messages whole, one by
one.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from gpu_orchestrator.api import session

WHOLE = 64 << 10
PIECE = 32 << 10
LARGEST = 64 << 20
"""The largest message, and so the largest frame of a side that does not know pieces."""
USUAL = 200
"""About the bytes of a message beside its one large field."""
MESSAGES, MORE, LAST, ARRIVED = b"[", b"+", b".", b"-"
QUICK_S = 0.5
FIRST_WINDOW, LARGEST_WINDOW = 2, 32

Attempt = tuple[str, int]

_SIZES: dict[type, Callable[..., int]] = {
    session.Assign: lambda message: len(message.parameters),
    session.Done: lambda message: len(message.result),
    session.Log: lambda message: len(message.text),
    session.Values: lambda message: sum(map(len, message.values)) + len(message.values),
    session.Progress: lambda message: len(message.line),
    session.Failed: lambda message: len(message.error.message),
    session.RunnerDied: lambda message: len(message.evidence),
    session.Report: lambda message: USUAL * len(message.readings),
    session.Refused: lambda message: len(message.reason),
}


def weight(message: session.Message) -> int:
    """Return about how many bytes a message has on the wire."""
    size = _SIZES.get(type(message))
    return USUAL + size(message) if size else USUAL


@dataclass(slots=True)
class Window:
    """How many pieces may be under way. It grows while they arrive quickly and shrinks while they do not, so
    that a message between two pieces waits for about `QUICK_S`, or for one piece."""

    size: int = FIRST_WINDOW
    _sent: deque[float] = field(default_factory=deque)

    @property
    def is_open(self) -> bool:
        return len(self._sent) < self.size

    def sent(self, now: float) -> None:
        self._sent.append(now)

    def arrived(self, now: float) -> None:
        if self._sent:
            is_quick = now - self._sent.popleft() < QUICK_S
            self.size = min(self.size + 1, LARGEST_WINDOW) if is_quick else max(self.size // 2, 1)


class FrameLink:
    """One end of a connection. Set `pieces` when the other side has said that it knows them.

    Messages of one attempt stay in order: what an attempt printed must arrive before its outcome."""

    def __init__(self, largest: int = LARGEST) -> None:
        self.pieces = False
        self._largest = largest
        self._small: list[session.Message] = []
        self._weight = 0
        self._large: deque[session.Message] = deque()
        self._behind: Counter[Attempt] = Counter()
        self._cut, self._at = b"", 0
        self._cutting: session.Message | None = None
        self._window = Window()
        self._was_small = False
        self._parts: list[bytes] = []
        self._received = self._to_acknowledge = 0

    def put(self, message: session.Message) -> None:
        """Queue a message."""
        size_of = _SIZES.get(type(message))
        size = USUAL if size_of is None else USUAL + size_of(message)
        if size > WHOLE or (self._behind and _attempt(message) in self._behind):
            self._put_large(message)
        else:
            self._small.append(message)
            self._weight += size

    def next(self, now: float) -> bytes | None:
        """Return the next frame to write, or None until there are messages or a piece has arrived."""
        if not (self._to_acknowledge or self._cut or self._large):  # nearly always
            if not self._small:
                self._was_small = False
                return None
            if (frame := self._small_frame()) is not None:
                self._was_small = True
                return frame
        if self._to_acknowledge:
            self._to_acknowledge -= 1
            return ARRIVED
        while self._small and not (self._was_small and self._may_send_large()):
            if (frame := self._small_frame()) is not None:
                self._was_small = True
                return frame
        self._was_small = False
        return self._large_frame(now) if self._may_send_large() else None

    @property
    def has_messages(self) -> bool:
        """Whether messages wait to be written."""
        return bool(self._small or self._cut or self._large)

    @property
    def has_news(self) -> bool:
        """Whether what was received last may let `next` return a frame: a piece to acknowledge, or room for
        the next one."""
        return bool(self._to_acknowledge or self._cut or self._large)

    def receive(self, frame: bytes | str, now: float) -> bytes | str | None:
        """Return the frame of messages that is complete now, or None. If that is another one than was
        received, and `has_news`, call `next`. Raise `msgspec.MsgspecError` if the other side sends too
        much."""
        if isinstance(frame, str) or (kind := frame[:1]) == MESSAGES:
            return frame
        if kind == ARRIVED:
            self._window.arrived(now)
            return None
        if kind not in (MORE, LAST):
            return frame
        self._to_acknowledge += 1
        self._parts.append(frame[1:])
        self._received += len(frame) - 1
        if self._received > self._largest:
            raise msgspec.ValidationError(f"a message has more than {self._largest} bytes")
        if kind == MORE:
            return None
        whole, self._parts, self._received = b"".join(self._parts), [], 0
        return whole

    def _put_large(self, message: session.Message, *, first: bool = False) -> None:
        (self._large.appendleft if first else self._large.append)(message)
        if (attempt := _attempt(message)) is not None:
            self._behind[attempt] += 1

    def _small_frame(self) -> bytes | None:
        """Return small messages, as many as go into one frame. If they are larger than they seemed, send them
        in pieces: then there is no frame yet."""
        messages = self._small
        if self._weight <= WHOLE:
            self._small, self._weight = [], 0
        else:
            weights = list(accumulate(weight(each) for each in messages))
            count = max(sum(each <= WHOLE for each in weights), 1)
            messages, self._small = messages[:count], messages[count:]
            self._weight -= weights[count - 1]
        frame = session.frame(*messages)
        if len(frame) > WHOLE and self.pieces:
            self._enlarge([*messages, *self._small])
            return None
        return frame

    def _enlarge(self, messages: list[session.Message]) -> None:
        """Queue small messages as large ones, before all others of their attempts: those were put later.
        Messages of no attempt, such as renewals, stay small if that helps."""
        of_none = [each for each in messages if _attempt(each) is None]
        self._small = of_none if len(of_none) < len(messages) else []
        self._weight = sum(weight(each) for each in self._small)
        for each in reversed(messages):
            if not self._small or _attempt(each) is not None:
                self._put_large(each, first=True)

    def _may_send_large(self) -> bool:
        """Return whether to send a piece now. A large message begins when no small one waits, which may be of
        the same attempt."""
        if not self._cut and (self._small or not self._large):
            return False
        return self._window.is_open or not self.pieces

    def _large_frame(self, now: float) -> bytes:
        if not self._cut:
            self._cutting = self._large.popleft()
            self._cut, self._at = session.frame(self._cutting), 0
        if not self.pieces:
            return self._last_of(self._cut)
        start, self._at = self._at, self._at + PIECE
        piece = self._cut[start : self._at]
        self._window.sent(now)
        return MORE + piece if self._at < len(self._cut) else self._last_of(LAST + piece)

    def _last_of(self, frame: bytes) -> bytes:
        """Return the last frame of a large message. What waited behind it may go now."""
        self._cut, done, self._cutting = b"", self._cutting, None
        if done is not None and (attempt := _attempt(done)) is not None:
            self._behind[attempt] -= 1
            if not self._behind[attempt]:
                del self._behind[attempt]
        return frame


def _attempt(message: session.Message) -> Attempt | None:
    task = getattr(message, "task", None)
    return None if task is None else (task, getattr(message, "attempt", 0))
