"""How deep JSON is nested. The depth that a decoder accepts depends on its version and on its caller, so one
process may write what another cannot read, and a worker that cannot read an assignment loses its session. So
nothing is passed on that is deeper than every decoder accepts."""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

DEEPEST = 200
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PART = re.compile(_STRING.pattern + rb"|[\[{\]}]", re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def is_too_deep(text: bytes) -> bool:
    """Return True if well-formed JSON is nested too deep."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    steps = _STRING.sub(b"", text).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEEPEST


def cut(text: bytes, mark: bytes, *, deepest: int = DEEPEST) -> bytes:
    """Replace every value of well-formed JSON that is nested deeper than `deepest` levels with `mark`."""
    depth, kept, start, parts = 0, 0, 0, list[bytes]()
    for part in _PART.finditer(text):
        at = part.start()
        match text[at]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth == deepest + 1:
                    start = at
            case 0x5D | 0x7D:  # ] }
                if depth == deepest + 1:
                    parts += text[kept:start], mark
                    kept = at + 1
                depth -= 1
    return b"".join((*parts, text[kept:]))


def is_value_too_deep(value: Any) -> bool:
    """Return True if a decoded value is nested too deep, without recursion."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level if isinstance(each, (dict, list)) for inner in _inside(each)]
        if not level:
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
