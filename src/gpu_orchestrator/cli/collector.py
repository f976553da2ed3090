"""Python's garbage collector at the start of a process. `main` calls `pause`; a process that runs long then
calls `resume` (`log_setup`) or chooses its own pace (`host.settle_down`).

Modules stay. To look through them again and again while they are loaded is a tenth of the CPU of a start.
"""

import gc

USUAL = gc.get_threshold()
SELDOM = 200_000
"""Objects: more than any command loads, and few enough that one which never calls `resume` stays small."""


def pause() -> None:
    gc.set_threshold(SELDOM)


def resume() -> None:
    """Collect as usual, but never look at what is loaded by now."""
    gc.freeze()
    gc.set_threshold(*USUAL)
