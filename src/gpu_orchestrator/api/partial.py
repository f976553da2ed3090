"""Bounds of partial results, which a task sends before its end, wherever they pass. Runners load this: it
stays small.
"""

LARGEST_VALUE = 1 << 20
"""Bytes of one value as JSON."""
MOST_VALUES = 10_000
"""Values in one message."""
LARGEST_MESSAGE = 64 << 10
"""Bytes of the values in one message, unless it has one value alone."""
MOST_AHEAD = 256 << 10
"""Bytes of values that a task may have sent and the manager not taken; beyond them the task waits."""
