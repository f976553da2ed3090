"""Request and response bodies for keys, limits, the audit log and callback secrets."""

from typing import Annotated, Literal

from msgspec import Meta

from gpu_orchestrator.apps.manager.access.limits import DEFAULTS, Limits
from gpu_orchestrator.apps.manager.schema import Answer, Body

Handle = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$(?!\n)",
        description="use letters, digits and . _ @ -, at most 63 characters, a letter or digit first",
    ),
]
"""A short name without spaces or separators, because other names contain it."""


ForWorker = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,62})$(?!\n)", description="use the name of a worker, or *"
    ),
]


class KeyRequest(Body, frozen=True):
    """Keys of one `owner` share tasks, limits and fair share; without `owner`, the name is the owner. Without
    `expires_in` (seconds) a key is valid until it is revoked. A key of scope `worker` is for one worker: for
    `worker`, else for the first that joins with it; with `*` for any number of workers."""

    name: Handle
    owner: Handle | None = None
    scopes: Annotated[tuple[Literal["read", "submit", "admin", "worker"], ...], Meta(min_length=1)] = (
        "submit",
    )
    expires_in: Annotated[float, Meta(gt=0, le=315_360_000)] | None = None
    limits: Limits = DEFAULTS
    worker: ForWorker | None = None


class KeyInfo(Answer, frozen=True):
    """`limits` are those set on the key; the settings give the others. `effective_limits` are all of them,
    where 0 means no limit. `configured` keys have no limits. `worker` is the one worker that may join with
    the key, `*` if any may; null if none has joined yet, and for keys that are not for workers."""

    key_id: str
    name: str
    owner: str
    scopes: list[str]
    status: Literal["active", "expired", "revoked"]
    limits: Limits
    effective_limits: Limits
    configured: bool
    worker: str | None
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class KeyMade(KeyInfo, frozen=True):
    """`key` is the secret. It is shown only once, because the server keeps only its hash."""

    key: str


class Share(Answer, frozen=True):
    """A limit, where 0 means none, and what is used of it now."""

    most: int
    used: float


class MyLimits(Answer, frozen=True):
    """`held_back` says why no task of this owner may start now; it is empty if one may. GPU seconds count the
    tasks that ended today (UTC); the day ends in `day_left_seconds`."""

    key_id: str
    owner: str
    requests_per_minute: Share
    requests_per_hour: Share
    queued_tasks: Share
    running_tasks: Share
    gpu_seconds_per_day: Share
    weight: float
    day_left_seconds: float
    held_back: str


class KeyPage(Answer, frozen=True):
    keys: list[KeyInfo]
    total: int
    limit: int
    offset: int


class CallbackSecret(Answer, frozen=True):
    """`secret` is shown only once."""

    owner: str
    secret: str


class CallbackSecretGone(Answer, frozen=True):
    owner: str
    status: str


class AuditEntry(Answer, frozen=True):
    """`action` is the method and the route; `object` is the ids in its path, or the id that was created."""

    number: int
    time: str
    key_id: str | None
    owner: str | None
    action: str
    object: str
    status: int
    outcome: Literal["done", "refused", "failed"]
    correlation_id: str
    source: str


class AuditPage(Answer, frozen=True):
    entries: list[AuditEntry]
    total: int
    next: int | None
