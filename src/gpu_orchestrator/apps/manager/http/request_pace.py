"""How a request comes in: how long its head may be, and how slowly head and body may come.

`guarded_protocol` tells what its parser found in each piece of data. Time is an argument, in seconds.

silent ──first byte──▶ head ──▶ body ──▶ none ──first byte──▶ head …
"""

from enum import Enum

HEAD_BYTES = 64 << 10
"""What is fed to the parser at once, and the most that the head of a request or the trailer of a body may
have."""
LEAST_BYTES_PER_S = 1024


class Phase(Enum):
    SILENT = "silent"
    HEAD = "head"
    BODY = "body"
    NONE = "none"


class RequestPace:
    """The phase of one connection, told by the parser's callbacks, and what came since it began.

    `begun` counts requests that began in this piece of data, `has_content` tells whether it had some of a
    body. Then nothing can be said of how much of the piece is head, and it is not counted: at most
    `HEAD_BYTES`."""

    __slots__ = ("_counted", "_in_window", "_since", "begun", "has_content", "phase")

    def __init__(self, now: float) -> None:
        self.phase = Phase.SILENT
        self.begun = 0
        self.has_content = False
        self._counted = self._in_window = 0
        self._since = now

    def is_too_long(self, size: int, before: Phase) -> bool:
        """Count a piece of data that left a request unfinished. Return whether its head, or what is no
        content of its body, is too long by now. `before` is the phase before the piece."""
        is_mixed = self.has_content or self.begun > 1 or (self.begun and before in (Phase.HEAD, Phase.BODY))
        if is_mixed or (self.phase is Phase.BODY and before is not Phase.BODY):
            self._counted = 0
        else:
            self._counted = size if self.begun else self._counted + size
        self._in_window += size
        self.begun, self.has_content = 0, False
        return self._counted >= HEAD_BYTES

    def restart(self, now: float) -> None:
        """Begin to measure: a request has begun, or its body has."""
        self._since, self._in_window = now, 0

    def is_overdue(self, now: float, window_s: float, *, is_paused: bool) -> bool:
        """Return whether the head takes longer than `window_s`, or the body comes slower than it must.
        `is_paused`: we do not read, so the peer cannot send."""
        if now - self._since < window_s:
            return False
        if self.phase is not Phase.BODY:
            return True
        is_slow = self._in_window < LEAST_BYTES_PER_S * window_s and not is_paused
        self.restart(now)
        return is_slow
