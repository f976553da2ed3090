"""Tickets: what the manager sends to a worker by Celery, and what happens to them on the worker's machine.

A ticket names an attempt; it holds no parameters. Celery's pool process presents it to the worker's agent
over a socket, as one line of JSON, and hears how the attempt ended. The agent redeems it over its session
(`session.Redeem`): only the ledger says whether it counts.
"""

from typing import TypeAlias

import msgspec

from gpu_orchestrator.api.session import Count, Word

INFERENCE = "gpu_orchestrator.inference"
MANAGEMENT = "gpu_orchestrator.management"
LONGEST_LINE = 1 << 16


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True, tag="Ticket"):
    """`epoch` is the worker's at the time of the assignment."""

    task: Word
    attempt: Count
    epoch: Count

    @property
    def id(self) -> str:
        """The id of the Celery task: one for each attempt, because Celery never runs a revoked id again."""
        return f"{self.task}.{self.attempt}"


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Celery's main process: the agent ends when this connection does."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Celery's main process shuts down: finish what runs."""


class Revoke(msgspec.Struct, frozen=True, tag=True):
    """Somebody revoked the Celery task with this id."""

    id: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A management task asks for `ping`, `status` or `health`, or wants the worker to `drain`."""

    what: str


class Attached(msgspec.Struct, frozen=True, tag=True):
    name: str
    max_concurrent: int


class Void(msgspec.Struct, frozen=True, tag=True):
    """The ticket does not count."""

    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The ledger has the outcome of the attempt; `status` is `completed`, `failed`, `died`, `refused` or
    `cancelled`. If not `counted`, the ledger had given the task to others and dropped this outcome."""

    status: str
    counted: bool = True
    error: str = ""
    message: str = ""


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The worker no longer has the attempt: its lease ended, and another worker may run it."""


class Told(msgspec.Struct, frozen=True, tag=True):
    answer: dict[str, object]


ToAgent: TypeAlias = Ticket | Attach | Leave | Revoke | Ask
ToCelery: TypeAlias = Attached | Void | Ended | Lost | Told

_encode = msgspec.json.Encoder().encode
read_by_agent = msgspec.json.Decoder(ToAgent).decode
read_by_celery = msgspec.json.Decoder(ToCelery).decode


def line(message: ToAgent | ToCelery) -> bytes:
    return _encode(message) + b"\n"


def queue_of(worker: str) -> str:
    """Return the name of a worker's own queue."""
    return f"worker.{worker}"


def attempt_of(celery_id: str) -> tuple[str, int] | None:
    """Return task and attempt of an id that `Ticket.id` made; None for any other."""
    task, _, attempt = celery_id.rpartition(".")
    return (task, int(attempt)) if task and attempt.isascii() and attempt.isdigit() else None
