"""How much a key may: what it says itself, else what the settings say.

Keys from the settings and worker tokens are not limited: they are the operator's own. `Limits` is stored with
a key and shown with it; `Allowance` is what counts in the end.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters.settings import Settings

Most = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a key says of itself. Absent: the server's default; 0: without a limit. Keys of one owner have
    their tasks in common, so all but the requests is counted for all of them together."""

    requests_per_minute: Most | None = None
    requests_per_hour: Most | None = None
    queued_tasks: Most | None = None
    running_tasks: Most | None = None
    gpu_seconds_per_day: Most | None = None
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """0 is without a limit."""

    per_minute: int = 0
    per_hour: int = 0
    queued: int = 0
    running: int = 0
    gpu_seconds: int = 0
    weight: float = 1.0


UNLIMITED = Allowance()


def allowance(limits: Limits, settings: Settings) -> Allowance:
    return Allowance(
        per_minute=_given(limits.requests_per_minute, settings.rate_limit_per_minute),
        per_hour=_given(limits.requests_per_hour, settings.rate_limit_per_hour),
        queued=_given(limits.queued_tasks, settings.quota_queued_tasks),
        running=_given(limits.running_tasks, settings.quota_running_tasks),
        gpu_seconds=_given(limits.gpu_seconds_per_day, settings.quota_gpu_seconds_per_day),
        weight=limits.weight,
    )


def _given(said: int | None, default: int) -> int:
    return default if said is None else said


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Limits)


def encode(limits: Limits) -> str:
    return _encoder.encode(limits).decode()


def decode(text: str) -> Limits:
    """Of a key that was stored before there were limits it is empty."""
    return _decoder.decode(text) if text else DEFAULTS
