"""Pass on what attempts send before their end, and keep it until the manager has taken it.

A runner may be `MOST_AHEAD` bytes before the manager and waits then, so this keeps no more for each attempt.
What was lost on the way is sent again: after a lost connection, when the manager refused it for now, and when
it has not answered for long. The store recognises what it has.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Key

TICK_S = 0.1
FIRST_S, LONGEST_S = 0.2, 1.0
"""How long to wait before a value that was refused for now is sent again."""
SILENCE_S = 10.0
"""How long to wait for an answer that may be lost."""


@dataclass(frozen=True, slots=True)
class ValueCallbacks:
    """What the agent offers: whether the manager keeps values, whether the worker is joined, and how to send
    a message."""

    are_kept: Callable[[], bool]
    is_joined: Callable[[], bool]
    send: Callable[[session.Message], None]


@dataclass(slots=True)
class Backlog:
    """Values of one attempt that the manager has not taken. `tell` tells its runner how many it has taken.

    flowing: all were sent --refused, or no answer for SILENCE_S--> probing: the first is sent at `due`
             <-------------------------- taken --------------------"""

    tell: Callable[[int], None]
    untaken: deque[session.Values] = field(default_factory=deque)
    taken: int = 0
    is_probing: bool = False
    pause_s: float = FIRST_S
    due: float = 0.0

    def take(self, count: int) -> bool:
        """Forget the first `count` values; return whether that is news."""
        if count <= self.taken:
            return False
        self.taken = count
        while self.untaken and self.untaken[0].at + len(self.untaken[0].values) <= count:
            self.untaken.popleft()
        self.tell(count)
        return True


class AttemptValues:
    def __init__(self, agent: ValueCallbacks) -> None:
        self._agent = agent
        self._backlogs: dict[Key, Backlog] = {}
        self._timer: asyncio.Handle | None = None

    def sent(self, frame: frames.Sent, tell: Callable[[int], None]) -> None:
        """Pass on values of a running attempt; `tell` its runner how many were taken, later."""
        if not self._agent.are_kept():  # by an older manager, or as its operator chose
            tell(frame.at + len(frame.values))
            return
        key = (frame.task, frame.attempt)
        backlog = self._backlogs.get(key)
        if backlog is None:
            backlog = self._backlogs[key] = Backlog(tell)
        message = session.Values(*key, frame.at, frame.values, backlog.taken)
        backlog.untaken.append(message)
        if not backlog.is_probing and self._agent.is_joined():
            self._agent.send(message)
            backlog.due = self._now() + SILENCE_S
        self._tick_later()

    def taken(self, message: session.Taken) -> None:
        backlog = self._backlogs.get((message.task, message.attempt))
        if backlog is None:
            return
        if is_news := backlog.take(message.values):
            backlog.pause_s = FIRST_S
        if message.later:
            backlog.is_probing, backlog.due = True, self._now() + backlog.pause_s
        elif is_news:
            if backlog.is_probing:
                self._send(backlog, len(backlog.untaken))
            backlog.is_probing, backlog.due = False, self._now() + SILENCE_S

    def ended(self, key: Key) -> None:
        self._backlogs.pop(key, None)

    def joined(self) -> None:
        """Send again what may have been lost with the last connection. If this manager keeps no values, let
        the runners go on."""
        for backlog in self._backlogs.values():
            if self._agent.are_kept():
                backlog.is_probing = False
                self._send(backlog, len(backlog.untaken))
            elif backlog.untaken:
                backlog.take(backlog.untaken[-1].at + len(backlog.untaken[-1].values))

    def forget(self) -> None:
        self._backlogs.clear()

    def _send(self, backlog: Backlog, most: int) -> None:
        for message in list(backlog.untaken)[:most]:
            self._agent.send(msgspec.structs.replace(message, taken=backlog.taken))
        backlog.due = self._now() + SILENCE_S

    def _tick_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        waiting = [backlog for backlog in self._backlogs.values() if backlog.untaken]
        for backlog in waiting if self._agent.is_joined() else ():
            if now >= backlog.due:
                backlog.is_probing, backlog.pause_s = True, min(backlog.pause_s * 2, LONGEST_S)
                self._send(backlog, 1)
        if waiting:
            self._tick_later()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
