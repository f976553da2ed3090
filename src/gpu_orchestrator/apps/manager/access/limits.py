"""The limits of a key: its own, or else the defaults from the settings.

Keys from the settings and worker tokens have no limits, because they are the operator's own. `Limits` is
stored and shown with a key; `Allowance` is the result after the defaults are filled in.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters.settings import Settings

PoolName = Annotated[str, Meta(min_length=1, max_length=63)]
Most = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits set on a key. A missing field means the server's default; 0 means no limit. Keys of one
    owner share their tasks, so all limits but those on requests count for these keys together. A key with
    `pools` submits tasks to these pools alone."""

    requests_per_minute: Most | None = None
    requests_per_hour: Most | None = None
    queued_tasks: Most | None = None
    running_tasks: Most | None = None
    gpu_seconds_per_day: Most | None = None
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    pools: Annotated[tuple[PoolName, ...], Meta(max_length=64)] = ()


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a key or an owner may use; 0 means no limit."""

    per_minute: int = 0
    per_hour: int = 0
    queued: int = 0
    running: int = 0
    gpu_seconds: int = 0
    weight: float = 1.0


UNLIMITED = Allowance()


def shown(may: Allowance) -> Limits:
    """Return an allowance with the names of the API."""
    return Limits(may.per_minute, may.per_hour, may.queued, may.running, may.gpu_seconds, may.weight)


def allowance(limits: Limits, settings: Settings) -> Allowance:
    return Allowance(
        per_minute=_given(limits.requests_per_minute, settings.rate_limit_per_minute),
        per_hour=_given(limits.requests_per_hour, settings.rate_limit_per_hour),
        queued=_given(limits.queued_tasks, settings.quota_queued_tasks),
        running=_given(limits.running_tasks, settings.quota_running_tasks),
        gpu_seconds=_given(limits.gpu_seconds_per_day, settings.quota_gpu_seconds_per_day),
        weight=limits.weight,
    )


def _given(own: int | None, default: int) -> int:
    return default if own is None else own


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Limits)


def encode(limits: Limits) -> str:
    return _encoder.encode(limits).decode()


def decode(text: str) -> Limits:
    """Decode stored limits. The text is empty for a key that was stored before keys had limits."""
    return _decoder.decode(text) if text else DEFAULTS
