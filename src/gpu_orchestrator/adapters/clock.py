"""Time that only moves forward, for deadlines and leases."""

import time


def elapsed_s() -> float:
    """Seconds since some start, counting also those during which the machine was suspended.

    A lease runs on while its holder's machine sleeps, and `time.monotonic` would not notice.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
