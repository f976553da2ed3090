"""Tie the life of a child process to that of its parent, by the kernel's parent-death signal (Linux).

Called in the child between fork and exec. Imports little: every runner's keeper loads it.
"""

import ctypes
import os
from signal import Signals

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int, number: Signals) -> None:
    """Have the kernel send `number` to this process when its parent ends. If the kernel refuses, or
    `parent` has ended already, the signal would never come: exit at once."""
    if _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) or os.getppid() != parent:
        os._exit(1)
