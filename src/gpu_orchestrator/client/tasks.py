"""Tasks as a client writes and reads them: calls with their options, and the state that the server tells.
Pure."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from gpu_orchestrator.api import plain_json, references, task_gangs

R_co = TypeVar("R_co", covariant=True)
Decode = Callable[[bytes], Any]
FINAL = frozenset({"completed", "failed", "cancelled", "dead"})


class Gang(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as `size` members that begin together and end together: `Gang(4, same="rack")`. All of them run
    on workers with the same value of the label `same`; with `near`, if that is possible at once. In a batch,
    calls with the same `name` are one gang."""

    size: int = 1
    name: str = ""
    same: str = ""
    near: str = ""


class Options(TypedDict, total=False):
    """How a task is run: the words of the command line and of the HTTP API."""

    gpus: int
    """How many devices; 0 for none, 1 if nothing is said."""
    gpu_memory: str
    """Memory to reserve on each device, such as `"8GB"`; whole devices if not given."""
    vendor: str
    pool: str
    worker_labels: Mapping[str, str]
    """Only workers with these labels."""
    model: str
    priority: str | int
    """`low`, `normal`, `high`, `critical`, or 0 to 100."""
    timeout: float
    """Stop it after this many seconds."""
    retries: int
    labels: Mapping[str, str]
    depends_on: "Sequence[Pending[Any] | str] | Pending[Any]"
    """Handles or ids of tasks that must have ended before. Those whose `output` is an argument are among them
    by themselves."""
    on_failure: Literal["cancel", "run"]
    """What becomes of this task if one of them ends without a result."""
    not_before: str
    """`10m` from now, or a time such as `2026-01-31T12:00:00Z`."""
    expires: str
    callback_url: str
    result_ttl: float
    cache: float
    """Seconds for which the result answers for equal tasks that ask for the cache, too."""
    max_lost_workers: int
    gang: int | Gang
    """How many members: all begin together, and end together. The handle is that of rank 0."""
    idempotency_key: str
    """Submitting the same key again returns the same task. The client makes keys for its own retries; give
    one that outlives your process."""


class Cron(msgspec.Struct, frozen=True):
    """When a schedule fires: `Cron("0 3 * * *", timezone="Europe/Berlin", missed="skip")`. The words are
    those of the HTTP API."""

    schedule: str
    """Minute, hour, day of the month, month and day of the week, or `@daily`, `@every 30s` and the like."""
    timezone: str = "UTC"
    missed: Literal["run_once", "run_all", "skip"] = "run_once"
    """What becomes of moments at which no server could queue the task: the latest is run, or all are, or none
    that is more than a minute old."""
    overlap: Literal["allow", "skip", "queue"] = "allow"
    """What if the task of the moment before has not ended: begin beside it, pass this moment over, or wait
    for it."""
    jitter: str = ""
    """Such as `10m`: fire up to so much later, always by the same delay."""

    @classmethod
    def of(cls, given: "str | Cron") -> "Cron":
        return cls(given) if isinstance(given, str) else given


RESOURCES = {
    "gpus": "gpus",
    "gpu_memory": "gpu_memory",
    "vendor": "vendor",
    "pool": "pool",
    "worker_labels": "labels",
}
FIELDS = {"model": "model_name", "retries": "max_retries"}
"""Options that the HTTP API calls otherwise."""


def checked(options: Mapping[str, Any]) -> Options:
    """Return the options; raise `TypeError` for a word that is none."""
    known = Options.__annotations__
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
        if isinstance(value, float) and not isfinite(
            value
        ):  # as JSON it would be null, which lifts the limit
            raise ValueError(f"option {name} is {value}; give a number, or leave it out")
    return cast(Options, dict(options))


class Call(Generic[R_co]):
    """A task that is not submitted yet: what to run, with what, and how. Made by `task_function.call(...)`,
    or by hand for the task types that a worker has by itself: `Call("echo", {"hello": "world"}, gpus=0)`."""

    __slots__ = ("decode", "decode_value", "depends_on", "options", "parameters", "task_type")

    @overload
    def __init__(
        self: "Call[Any]", task_type: str, parameters: Any = None, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(
        self,
        task_type: str,
        parameters: Any = None,
        *,
        decode: Callable[[bytes], R_co],
        decode_value: Decode | None = None,
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(
        self,
        task_type: str,
        parameters: Any = None,
        *,
        decode: Decode | None = None,
        decode_value: Decode | None = None,
        **options: Any,
    ) -> None:
        self.task_type, self.options = task_type, checked(options)
        self.depends_on = _ids_of(self.options.pop("depends_on", None))
        taken = Taken()
        self.parameters = msgspec.Raw(_encode({} if parameters is None else parameters, taken))
        self.take(taken.ids)
        self.decode: Callable[[bytes], R_co] = decode or msgspec.json.decode
        self.decode_value: Decode = decode_value or msgspec.json.decode

    def take(self, ids: Sequence[str]) -> None:
        """Depend on these tasks as well."""
        self.depends_on = list(dict.fromkeys([*self.depends_on, *ids]))

    def body(self) -> dict[str, Any]:
        """Return the request of the HTTP API."""
        options = {
            name: value for name, value in self.options.items() if value is not None and name != "gang"
        }
        resources = {theirs: options.pop(ours) for ours, theirs in RESOURCES.items() if ours in options}
        fields = {FIELDS.get(name, name): value for name, value in options.items()}
        return {
            "task_type": self.task_type,
            "parameters": self.parameters,
            **fields,
            **self._gang(),
            **({"depends_on": self.depends_on} if self.depends_on else {}),
            **({"resources": resources} if resources else {}),
        }

    @property
    def gang_name(self) -> str:
        gang = self.options.get("gang")
        return gang.name if isinstance(gang, Gang) else ""

    def _gang(self) -> dict[str, Any]:
        """Return the gang as the HTTP API says it."""
        gang = self.options.get("gang")
        if gang is None:
            return {}
        return {"gang": Gang(gang) if isinstance(gang, int) else gang}

    def encoded(self) -> bytes:
        from gpu_orchestrator.client.errors import BadArguments

        try:
            return msgspec.json.encode(self.body())
        except (TypeError, ValueError, OverflowError) as error:
            raise BadArguments(f"the options of {self.task_type} cannot be sent as JSON: {error}") from error


class Taken:
    """Writes handles among the parameters as references to their results, and collects them."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, Pending):
            raise NotImplementedError(f"Encoding objects of type {type(value).__name__} is unsupported")
        self.ids.append(value.id)
        return references.to(value.id)


def _ids_of(tasks: "Sequence[Pending[Any] | str] | Pending[Any] | None") -> list[str]:
    """Return the ids of tasks; one alone will do, as a text is a sequence, too."""
    several = [tasks] if isinstance(tasks, Pending | str) else tasks or ()
    return [each.id if isinstance(each, Pending) else each for each in several]


def _encode(parameters: Any, taken: Taken) -> bytes:
    from gpu_orchestrator.client.errors import BadArguments

    try:
        return plain_json.encode(parameters, taken)
    except plain_json.NotJson as error:
        raise BadArguments(f"the parameters cannot be sent as JSON: {error}") from error


class TaskError(msgspec.Struct, frozen=True):
    type: str
    message: str
    retryable: bool = False


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the server knows it. `reason` says why it waits. `result` is JSON; it is empty for a result
    that is too large to be sent along, of `result_bytes`."""

    task_id: str
    status: str = "missing"
    """`missing` for a task that the server does not know, or no longer."""
    task_type: str = ""
    attempt: int = 0
    assigned_worker: str | None = None
    created_at: str = ""
    started_at: str | None = None
    completed_at: str | None = None
    duration_seconds: float | None = None
    progress: str | None = None
    error: TaskError | None = None
    reason: str = ""
    labels: dict[str, str] = {}
    priority: int = 50
    gpus: int = 0
    devices: list[dict[str, Any]] = []
    queue_position: int | None = None
    depends_on: list[str] = []
    on_failure: str = ""
    open_dependencies: int = 0
    gang_id: str = ""
    gang_rank: int | None = None
    gang_size: int = 0
    result: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    result_bytes: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in FINAL or self.status == "missing"


class Pending(Generic[R_co]):
    """A submitted task. `decode` reads its result, `decode_value` what it yields; `known` is what was last
    heard of it, `reader` the name under which the server knows who followed it last and does so no more."""

    __slots__ = ("decode", "decode_value", "id", "known", "reader")

    def __init__(
        self, task_id: str, decode: Callable[[bytes], R_co], decode_value: Decode = msgspec.json.decode
    ) -> None:
        self.id, self.decode, self.decode_value = task_id, decode, decode_value
        self.known: TaskInfo | None = None
        self.reader = ""

    @property
    def output(self) -> R_co:
        """The result, for the arguments of another task: that one waits for this one, and its worker gets the
        result. Nothing else can be done with it."""
        return cast(R_co, self)

    def _call(self) -> Call[R_co]:
        """Return a call that reads the results of this task, for a handle of another one like it."""
        return Call("", decode=self.decode, decode_value=self.decode_value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.known.status if self.known else ''}".rstrip() + ">"


def members_of(info: TaskInfo) -> list[str]:
    """Return the ids of all members of a task's gang, by rank; of a task that is in none, its own."""
    if not info.gang_id:
        return [info.task_id]
    return list(task_gangs.members(info.gang_id, info.gang_size))


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task waits: for every worker and every device, what keeps it from taking the task."""

    task_id: str
    status: str
    reason: str = ""
    policy: str = ""
    would_go_to: str | None = None
    reasons: list[str] = []
    workers: list[dict[str, Any]] = []

    def __str__(self) -> str:
        return f"{self.status}: {self.reason or self.would_go_to or 'nothing keeps it'}"


class Event(msgspec.Struct, frozen=True):
    """Something that happened in the cluster. Give `id` as `after` to go on behind it."""

    id: str
    name: str
    data: dict[str, Any]
