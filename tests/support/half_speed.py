"""Let a process run half of the time, as on half a core, without rights on cgroups."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.process import Process

PERIOD_S = 0.1
"""What CPU quotas of Kubernetes use."""


@contextmanager
def half_speed(process: Process) -> Iterator[None]:
    """Stop and continue the process in turn: it gets at most half of a core."""
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(process, done))
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        process.resume()


def _beat(process: Process, done: threading.Event) -> None:
    while not done.wait(PERIOD_S / 2):
        process.pause()
        done.wait(PERIOD_S / 2)
        process.resume()
