"""Send what attempts print to the manager: paced while they run, the rest before their outcome.

An attempt that prints without end costs the manager and the store little: it keeps its newest text, and the
rest is counted. After a lost connection the last part is sent again; the store recognises what it has.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempt import Attempt, Key
from gpu_orchestrator.apps.worker.transcript import Transcript

TICK_S = 0.25
PIECE = 64 << 10
PER_TICK = 4 * PIECE
"""Bytes that all attempts of this worker together may send at each tick."""
STRAY_S, MOST_STRAY, SHOWN_STRAY = 1.0, 16 << 10, 2000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LogCallbacks:
    """What the agent offers: how many bytes of an attempt's log the manager takes (0: none), whether the
    worker is joined, and how to send a message."""

    most_bytes: Callable[[], int]
    is_joined: Callable[[], bool]
    send: Callable[[session.Message], None]


class AttemptOutput:
    """Keeps the transcripts of attempts: while they run, and until the manager has acknowledged how they
    ended."""

    def __init__(self, agent: LogCallbacks) -> None:
        self._agent = agent
        self._with_news: dict[Key, Attempt] = {}
        self._ended: dict[Key, Transcript] = {}
        self._timer: asyncio.Handle | None = None
        self._ticked_at = 0.0

    def printed(self, attempt: Attempt, text: str, source: str = "") -> None:
        if not text:
            return
        if attempt.transcript is None:
            attempt.transcript = Transcript()
        attempt.transcript.write(text, self._agent.most_bytes(), source)
        if attempt.key not in self._with_news:
            self._with_news[attempt.key] = attempt
            self._tick_soon()

    def last_words(self, attempt: Attempt, text: str) -> None:
        """Add lines after all that the attempt printed, also after a line without newline."""
        if attempt.transcript is not None:
            attempt.transcript.end(self._agent.most_bytes())
        self.printed(attempt, text)

    def ended(self, attempt: Attempt) -> None:
        """Send what is left of an attempt's text. Its outcome is sent after this."""
        self._with_news.pop(attempt.key, None)
        if (transcript := attempt.transcript) is not None:
            transcript.end(self._agent.most_bytes())
            self._ended[attempt.key] = transcript
            if self._agent.is_joined():
                self._send_progress(attempt.key, transcript)
                self._send_rest(attempt.key, transcript)

    def acknowledged(self, key: Key) -> None:
        self._ended.pop(key, None)

    def joined(self, running: dict[Key, Attempt]) -> None:
        """Continue after a lost connection: send the last part again, and what was printed meanwhile."""
        for key, transcript in self._ended.items():
            transcript.rewind()
            self._send_rest(key, transcript)
        for key, attempt in running.items():
            if attempt.transcript is not None:
                attempt.transcript.rewind()
                self._with_news[key] = attempt
        self._tick_soon()

    def forget_running(self) -> None:
        self._with_news.clear()

    def forget_ended(self) -> None:
        self._ended.clear()

    def _tick_soon(self) -> None:
        if self._timer is None and self._with_news:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._ticked_at + TICK_S, loop.time()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._ticked_at = asyncio.get_running_loop().time()
        if not self._agent.is_joined():
            return  # `joined` continues
        left = PER_TICK
        for key, attempt in list(self._with_news.items()):
            transcript = attempt.transcript
            if transcript is not None:
                self._send_progress(key, transcript)
                left -= self._send_piece(key, transcript, min(PIECE, left), now)
            del self._with_news[key]
            if transcript is not None and transcript.has_unsent:
                self._with_news[key] = attempt  # behind the others
        self._tick_soon()

    def _send_progress(self, key: Key, transcript: Transcript) -> None:
        if line := transcript.progress():
            self._agent.send(session.Progress(*key, line))

    def _send_piece(self, key: Key, transcript: Transcript, most: int, now: float) -> int:
        most = min(most, transcript.pace.allows(now))
        if most <= 0 or (piece := transcript.take(most)) is None:
            return 0
        size = len(piece.text.encode())
        transcript.pace.spend(size)
        self._agent.send(session.Log(*key, piece.at, piece.text))
        return size

    def _send_rest(self, key: Key, transcript: Transcript) -> None:
        while (piece := transcript.take(PIECE)) is not None:
            self._agent.send(session.Log(*key, piece.at, piece.text))


class StrayOutput:
    """Logs text of runners that belongs to no task: at most one line each STRAY_S."""

    def __init__(self) -> None:
        self._transcripts: dict[int, Transcript] = {}
        self._is_timed = False

    def printed(self, runner: int, text: str) -> None:
        self._transcripts.setdefault(runner, Transcript()).write(text, MOST_STRAY)
        if not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(STRAY_S, self._log)

    def _log(self) -> None:
        self._is_timed = False
        for runner, transcript in self._transcripts.items():
            transcript.end(MOST_STRAY)
            if (piece := transcript.take(MOST_STRAY)) is not None:
                log.info("output that belongs to no task", runner=runner, text=piece.text[-SHOWN_STRAY:])
        self._transcripts.clear()
