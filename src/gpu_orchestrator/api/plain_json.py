"""Values of users as JSON, with one error for all that JSON cannot carry.

msgspec writes NaN and infinities as null: a loss that has diverged would arrive as no loss at all.
"""

from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class NotJson(ValueError):
    """JSON cannot carry a value; the message says which and why."""


def encode(value: Any) -> bytes:
    """Return the value as JSON; raise `NotJson`."""
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise NotJson(str(error)) from error
    if b"null" in encoded and (found := _not_finite(value)):
        raise NotJson(found)
    return encoded


def _not_finite(value: Any) -> str:
    """Return which number is none; empty if all are."""
    with suppress(TypeError):  # JSON that was written before
        rest = [("", msgspec.to_builtins(value))]
        while rest:
            place, each = rest.pop()
            if isinstance(each, float) and not isfinite(each):
                return f"{place.removeprefix('.') or 'it'} is {each}; give None or a text"
            if isinstance(each, dict):
                rest += [(f"{place}.{name}", inner) for name, inner in each.items()]
            elif isinstance(each, list | tuple):
                rest += [(f"{place}[{at}]", inner) for at, inner in enumerate(each)]
    return ""
