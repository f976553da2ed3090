"""The tickets of one worker that receives its assignments by Celery: sent, sent again if they are lost, and
redeemed once.

issue --> sent --Redeem--> redeemed: the worker gets the assignment
           |--not redeemed for AGAIN_S--> sent again
           '--not redeemed for UNREAD_S--> refused: the task is placed again
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from gpu_orchestrator.api import session
from gpu_orchestrator.api.tickets import Ticket

Attempt = tuple[str, int]
OLD, AGAIN, STORE = "old", "again", "store"
AGAIN_S, UNREAD_S = 10.0, 60.0
UNREAD = (
    f"its message was not taken from the worker's Celery queue within {UNREAD_S:g} s: server and worker need "
    "the same CELERY_BROKER_URL"
)


@dataclass(frozen=True, slots=True)
class Celery:
    """What sends a ticket (to a worker, with the task's type for people), and what counts those that
    were void."""

    publish: Callable[[str, Ticket, str], None]
    void: Callable[[str], None]


class _Sent(NamedTuple):
    first_at: float
    last_at: float
    task_type: str
    has_elsewhere: bool


@dataclass(slots=True)
class Tickets:
    worker: str
    epoch: int
    celery: Celery
    redeemed: set[Attempt] = field(default_factory=set)
    _sent: dict[Attempt, _Sent] = field(default_factory=dict)

    def issue(self, assign: session.Assign, now: float) -> None:
        self._send((assign.task, assign.attempt), _Sent(now, now, assign.task_type, assign.has_elsewhere))

    def again(self, now: float) -> list[Attempt]:
        """Send tickets again that may be lost; return the attempts that nobody will take."""
        waiting = {key: sent for key, sent in self._sent.items() if key not in self.redeemed}
        unread = [key for key, sent in waiting.items() if now - sent.first_at > UNREAD_S]
        for key in unread:
            del self._sent[key]
            self.redeemed.add(key)  # it is given back: from now on its ticket is void
        for key, sent in waiting.items():
            if key not in unread and now - sent.last_at > AGAIN_S:
                self._send(key, sent._replace(last_at=now))
        return unread

    def redeem(self, asked: session.Redeem, own: Iterable[Attempt]) -> str:
        """Redeem a ticket for one of the worker's own attempts. Return why it is void, or ""."""
        key = (asked.task, asked.attempt)
        if asked.epoch != self.epoch or key not in own:
            return OLD
        if key in self.redeemed:
            return AGAIN
        self.redeemed.add(key)
        return ""

    def delivered(self, assign: session.Assign) -> session.Assign:
        """Return the assignment for a redeemed ticket, with what the dispatcher said and the store does not
        keep. The ticket is not sent again."""
        sent = self._sent.pop((assign.task, assign.attempt), None)
        return structs.replace(assign, has_elsewhere=sent is None or sent.has_elsewhere)

    def take_back(self, key: Attempt) -> None:
        """The store did not answer when a ticket was redeemed: it counts when it comes again."""
        self.redeemed.discard(key)

    def ended(self, key: Attempt) -> None:
        self.redeemed.discard(key)
        self._sent.pop(key, None)

    def _send(self, key: Attempt, sent: _Sent) -> None:
        self._sent[key] = sent
        self.celery.publish(self.worker, Ticket(*key, self.epoch), sent.task_type)
