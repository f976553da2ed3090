"""Messages between the agent and a runner over a socket pair: JSON, each after its length in four bytes.

JSON, because parameters and results then pass through as the bytes in which they arrived.
"""

import struct
from typing import Generic, TypeVar

import msgspec

from gpu_orchestrator.api.task_gangs import Gang

_LENGTH = struct.Struct("<I")


class Frame(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all frames. `task` and `attempt` together name one run; they are never reused."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the operator of this worker allows: `name -> module:function`, `name -> URL`, and any command.
    `tasks` are functions of the operator's own modules, `task type -> module:task`; `models` are classes that
    load models, `task type -> module:class`. `upstream_headers` are sent to the upstream of that name with
    every request; they may hold its key."""

    functions: dict[str, str] = {}
    upstreams: dict[str, str] = {}
    upstream_headers: dict[str, dict[str, str]] = {}
    allow_command: bool = False
    tasks: dict[str, str] = {}
    models: dict[str, str] = {}


# --- from the agent ----------------------------------------------------------------------------------------


class Setup(Frame, frozen=True):
    """Options and handlers of a new runner. `handlers` maps `task type -> module:function`."""

    options: Options
    handlers: dict[str, str]


class Run(Frame, frozen=True):
    task: str
    attempt: int
    task_type: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    model_name: str = ""
    memory_mib: int = 0
    correlation_id: str = ""
    only_load: bool = False
    gang: Gang | None = None


class Load(Frame, frozen=True):
    """Load a model with the class of a task type, before the first run of this runner. What it prints belongs
    to the attempt for which it is loaded."""

    task: str
    attempt: int
    task_type: str
    model: str
    path: str = ""
    options: msgspec.Raw = msgspec.Raw(b"{}")
    memory_mib: int = 0


class Cancel(Frame, frozen=True):
    task: str
    attempt: int


class SoftLimit(Frame, frozen=True):
    task: str
    attempt: int


class Taken(Frame, frozen=True):
    """The manager has taken so many values of this attempt: more of them may be sent."""

    task: str
    attempt: int
    values: int


class Got(Frame, frozen=True):
    """The answer to a `Wants` or `Leaves` of this number. `error` says why it cannot be done; it is `lasting`
    if it would be the same on another worker."""

    task: str
    attempt: int
    number: int
    path: str = ""
    file: str = ""
    size: int = 0
    error: str = ""
    lasting: bool = False


class Close(Frame, frozen=True):
    """End the server of the model politely, and then the runner. With `drains` requests that run may end."""

    drains: bool = True


class Withdraw(Frame, frozen=True):
    """Return all runs that have not begun, so that they can begin elsewhere."""


# --- from the runner ---------------------------------------------------------------------------------------


class Ready(Frame, frozen=True):
    pid: int


class Printed(Frame, frozen=True):
    """Text that a task printed; `task` is empty for text that belongs to none. All text of a task comes
    before its outcome."""

    task: str
    attempt: int
    text: str


HEALTHY, RESTARTING = "healthy", "restarting"


class Health(Frame, frozen=True):
    """How the server is that backs the runner's model, each time that changes. `why` is what was wrong last,
    `restarts` how often that made it start again."""

    state: str
    why: str = ""
    restarts: int = 0


class Sent(Frame, frozen=True):
    """Values that a task sent before its end. `at` is the number of the first. All of them come before its
    outcome; unless it was cancelled, they were taken by then."""

    task: str
    attempt: int
    at: int
    values: tuple[msgspec.Raw, ...]


class Wants(Frame, frozen=True):
    """The task needs a file of the server as a file here; without one, a folder into which it can put what it
    leaves."""

    task: str
    attempt: int
    number: int
    file: str = ""


class Leaves(Frame, frozen=True):
    """The task has put a file into that folder, called by the number; the server shall keep it."""

    task: str
    attempt: int
    number: int
    name: str


class Ended(Frame, frozen=True):
    """`spent`, here and below: the runner takes no more tasks, because its state may be damaged or may hold
    memory or processes. `left_behind`: threads or processes of an ended task
    still run in this runner; unknown, and False, if it has more runs queued."""

    task: str
    attempt: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    spent: bool = False
    left_behind: bool = False


class Erred(Frame, frozen=True):
    task: str
    attempt: int
    error: str
    message: str
    retryable: bool = False
    spent: bool = False
    left_behind: bool = False


class Stopped(Frame, frozen=True):
    """The handler ended because its task was cancelled."""

    task: str
    attempt: int
    spent: bool = False
    left_behind: bool = False


class Loaded(Frame, frozen=True):
    """The runner has its model, after this many seconds. If it cannot load it, it answers `Erred` for the
    attempt for which it should, and ends. A model with a server ends by itself when it is told to, within
    `ends_within_s`; one with 0 is killed."""

    load_s: float
    ends_within_s: float = 0.0


class Withdrawn(Frame, frozen=True):
    runs: tuple[tuple[str, int], ...]


Urgent = Setup | Cancel | SoftLimit | Taken | Got | Close | Withdraw
"""Frames that a runner reads while a task runs: the agent rings the bell once for each."""
ToRunner = Run | Load | Urgent
Outcome = Ended | Erred | Stopped
ToAgent = Ready | Printed | Health | Sent | Wants | Leaves | Loaded | Outcome | Withdrawn

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def encode(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class Reader(Generic[T]):
    """Cut a stream of bytes into frames, wherever the transport split it."""

    def __init__(self, decoder: msgspec.json.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        head = _LENGTH.size
        if not self._buffer and len(data) >= head and _LENGTH.unpack_from(data)[0] == len(data) - head:
            return [self._decoder.decode(data[head:])]  # one whole frame, as mostly
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            frames.append(self._decoder.decode(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return frames


def read_by_runner() -> Reader[ToRunner]:
    return Reader(msgspec.json.Decoder(ToRunner))


def read_by_agent() -> Reader[ToAgent]:
    return Reader(msgspec.json.Decoder(ToAgent))
