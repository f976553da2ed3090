"""How deep JSON is nested. The depth that a decoder accepts depends on its version and on its caller, so one
process may write what another cannot read, and a worker that cannot read an assignment loses its session. So
nothing is passed on that is deeper than every decoder accepts."""

import re
from itertools import accumulate

DEEPEST = 200
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def is_too_deep(text: bytes) -> bool:
    """Return True if well-formed JSON is nested too deep."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    steps = _STRING.sub(b"", text).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEEPEST
