"""How deep JSON is nested. How deep a reader goes depends on its version and on where it is called from, so
what one process writes another may fail to read, and a worker that cannot read an assignment loses its
session. So nothing is passed on that is deeper than all of them go.
"""

import re
from itertools import accumulate

DEEPEST = 200
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def is_too_deep(text: bytes) -> bool:
    """Of JSON that was found to be well formed."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    steps = _STRING.sub(b"", text).translate(_STEPS, _OTHERS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEEPEST
