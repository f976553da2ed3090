"""Where a running process spends its time: samples of the main thread's stack, as collapsed lines.

Served at /debug/profile to loopback only. Flame graph tools read the output: `outer;inner count`.
"""

import sys
import threading
import time
from collections import Counter
from types import FrameType

INTERVAL_S = 0.005
# How soon the sampler thread runs after it wakes. With Python's default of 5 ms it would run only when the
# main thread yields, so everything would look as if it were waiting.
SWITCH_S = 0.00005


def sample(seconds: float) -> str:
    """Sample for this long; call it in a thread of its own."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        stacks = _samples(time.monotonic() + seconds)
    finally:
        sys.setswitchinterval(usual)
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common())


def _samples(deadline: float) -> Counter[str]:
    main = threading.main_thread().ident
    stacks: Counter[str] = Counter()
    while main is not None and time.monotonic() < deadline:
        if frame := sys._current_frames().get(main):
            stacks[_collapsed(frame)] += 1
        time.sleep(INTERVAL_S)
    return stacks


def _collapsed(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame:
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))
