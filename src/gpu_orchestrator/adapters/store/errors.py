"""What can go wrong with the store.

StoreError
├── Unreachable   it does not answer, or answered that it cannot now: try again
├── Unfit         it answers, but may not be used as it is set up: an operator must act
└── Occupied      the data directory belongs to a process that is alive
"""


class StoreError(Exception):
    """Base of all errors of the store."""


class Unreachable(StoreError):
    """Whether what was asked took effect is not known."""


class Unfit(StoreError):
    """Set up in a way that loses tasks or lets strangers in."""


class Occupied(StoreError):
    """Another process has this data directory."""
