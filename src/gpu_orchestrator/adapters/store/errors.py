"""Errors of the store.

StoreError
├── Unreachable   it does not answer, or cannot serve the call now: retry
│   └── Rejected  it answers with an error
│       └── Full  it has no memory left for this call, and did nothing
├── Unfit         it answers, but its configuration is not safe to use: an operator must act
└── Occupied      another live process uses the data directory
"""


class StoreError(Exception):
    """Base of all errors of the store."""


class Unreachable(StoreError):
    """The store did not answer; the call may or may not have taken effect."""


class Rejected(Unreachable):
    """The store answered with an error, for example because its memory is full."""


class Full(Rejected):
    """The store has reached its maxmemory and did not run the script."""


class Unfit(StoreError):
    """The store is configured so that it loses tasks or accepts unauthenticated clients."""


class Occupied(StoreError):
    """Another process uses this data directory."""
