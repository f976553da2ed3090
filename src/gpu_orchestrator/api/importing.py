"""Which module of a user this process imports at the moment, as a worker. What that module submits now would
be submitted again by every process that runs one of its tasks, so a client refuses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_modules: list[str] = []


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Name the module while it is imported."""
    _modules.append(module)
    try:
        yield
    finally:
        _modules.pop()


def current() -> str:
    """Return the module that is being imported; empty if none is."""
    return _modules[-1] if _modules else ""
