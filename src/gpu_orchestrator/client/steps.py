"""What a client asks of the world, as values: requests, pauses, streams. Pure.

The conversation with a server (`conversation.py`) is written once, as generators that yield these steps and
are sent the answers. Two drivers perform them: one blocks (`blocking.py`), one awaits (`awaiting.py`), and a
third answers them without a server (`gpu_orchestrator.testing`).

    Ask     send a request                        -> Reply | Lost
    Open    send a request whose answer streams   -> Reply | Lost; the body is empty if the status is 200
    Read    wait for the next piece of a stream   -> bytes | Lost; b"" at its end
    Pause   wait                                  -> None
    Emit    hand a value to the caller            -> None
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """`path` is the whole target, with the query. `answer_s`: how long to wait for the answer. `file` is sent
    as the body, as it is."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    answer_s: float = 60.0
    file: str = ""


@dataclass(frozen=True, slots=True)
class Open:
    request: Ask


@dataclass(frozen=True, slots=True)
class Read:
    within_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """There was no answer, or a stream broke off. `why` is a sentence for people. `lasting`: to try again
    would not help."""

    why: str
    lasting: bool = False


Step: TypeAlias = Ask | Open | Read | Pause | Emit
Answer: TypeAlias = Reply | Lost | bytes | None
Steps: TypeAlias = Generator[Step, Any, T]
"""A conversation that returns a T. It is sent the answer to each of its steps."""
