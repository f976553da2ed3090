"""Time that only moves forward, for deadlines and leases."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_s() -> float:
    """Return the seconds since an arbitrary start, including time while the machine was suspended.

    All processes of a machine share that start, so a deadline may be sent from one to another. A lease
    runs on while its holder's machine sleeps, but `time.monotonic` does not count that time.
    """
    return time.clock_gettime(_CLOCK)
