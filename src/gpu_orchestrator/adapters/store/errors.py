"""Errors of the store.

StoreError
├── Unreachable    it does not answer, or cannot serve the call now: retry
│   ├── Rejected   it answers with an error
│   │   └── Full   it has no memory left for this call, and did nothing
│   ├── Loading    it reads its file into memory, and will answer after that
│   └── NotDurable it ran the call, but the write is not on enough disks to be acknowledged
├── Unfit          it answers, but its configuration is not safe to use: an operator must act
└── Occupied       another live process uses the data directory
"""


class StoreError(Exception):
    """Base of all errors of the store."""


class Unreachable(StoreError):
    """The store did not answer; the call may or may not have taken effect."""


class Rejected(Unreachable):
    """The store answered with an error, for example because its memory is full."""


class Full(Rejected):
    """The store has reached its maxmemory and did not run the script."""


class Loading(Unreachable):
    """The store reads its file into memory; `percent` of it so far."""

    def __init__(self, message: str, percent: float) -> None:
        super().__init__(message)
        self.percent = percent

    @property
    def progress(self) -> str:
        """Return how far it is, without its address."""
        return f"the store reads its file: {self.percent:g} % so far"


class NotDurable(Unreachable):
    """With DURABILITY=strict: the write took effect, but may still be lost. `reason` names no address."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the write is not durable yet: {reason}")
        self.reason = reason


class Unfit(StoreError):
    """The store is configured so that it loses tasks or accepts unauthenticated clients."""


class Occupied(StoreError):
    """Another process uses this data directory."""
