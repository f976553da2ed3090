"""Keeps Celery's main process alive when its broker goes away.

kombu (5.7) acknowledges and restores messages on channels that were closed with the lost connection, and
fails there with an AttributeError. Celery, which expects a connection error, ends of it, with all that runs.
"""

from typing import Any

from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError as Lost


def guard() -> None:
    """Make a channel of Redis that is closed say so with the error that Celery expects."""
    if hasattr(Channel, "_connparams"):
        Channel._connparams = _guarded(Channel._connparams)  # type: ignore[method-assign]


def _guarded(parameters: Any) -> Any:
    def checked(channel: Any, *given: Any, **more: Any) -> Any:
        if getattr(channel.connection, "client", None) is None:
            raise Lost("this channel was closed with its connection")
        return parameters(channel, *given, **more)

    return checked
