"""Values of users as JSON, with one error for all that JSON cannot carry.

msgspec writes NaN and infinities as null: a loss that has diverged would arrive as no loss at all.
"""

from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
Hook = Callable[[Any], Any]
"""Returns what is written in place of a value of a class that msgspec does not know; raises
`NotImplementedError` for others."""


class NotJson(ValueError):
    """JSON cannot carry a value; the message says which and why."""


def encode(value: Any, hook: Hook | None = None) -> bytes:
    """Return the value as JSON; raise `NotJson`."""
    try:
        encoded = msgspec.json.encode(value, enc_hook=hook) if hook else _encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise NotJson(str(error)) from error
    if b"null" in encoded and (found := _not_finite(value, hook)):
        raise NotJson(found)
    return encoded


def _not_finite(value: Any, hook: Hook | None) -> str:
    """Return which number is none; empty if all are."""
    with suppress(TypeError):  # JSON that was written before
        rest = [("", msgspec.to_builtins(value, enc_hook=hook))]
        while rest:
            place, each = rest.pop()
            if isinstance(each, float) and not isfinite(each):
                return f"{place.removeprefix('.') or 'it'} is {each}; give None or a text"
            if isinstance(each, dict):
                rest += [(f"{place}.{name}", inner) for name, inner in each.items()]
            elif isinstance(each, list | tuple):
                rest += [(f"{place}[{at}]", inner) for at, inner in enumerate(each)]
    return ""
