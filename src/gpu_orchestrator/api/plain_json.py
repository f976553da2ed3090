"""Values of users as JSON, with one error for all that JSON cannot carry.

msgspec writes NaN and infinities as null: a loss that has diverged would arrive as no loss at all.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
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
    except (TypeError, NotImplementedError) as error:
        raise NotJson(_unknown(value, hook) or str(error)) from error
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
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


def _unknown(value: Any, hook: Hook | None) -> str:
    """Return what JSON has no word for, and where it is; empty if it is not a value of an unknown class."""
    rest = [("", value)]
    while rest:
        place, each = rest.pop()
        with suppress(TypeError, NotImplementedError):
            msgspec.json.encode(each, enc_hook=hook)
            continue
        inner = _inside(each)
        if not inner and not isinstance(each, dict | list | tuple | set | frozenset):
            kind = type(each)
            module = kind.__module__.partition("._")[0]  # a class of pathlib says pathlib._local in 3.13
            home = "" if module == "builtins" else f" of {module}"
            return (
                f"{place.removeprefix('.') or 'it'} is of class {kind.__qualname__}{home}; "
                "give numbers, texts, lists, dicts or a dataclass, and what is large as a file"
            )
        rest = [(place + word, part) for word, part in inner]
    return ""


def _inside(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a value, by the words that lead to them."""
    if isinstance(value, dict):
        return [(f".{name}", each) for name, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{at}]", each) for at, each in enumerate(value)]
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    return [(f".{name}", getattr(value, name)) for name in getattr(value, "__struct_fields__", names)]
