"""What the autoscaler tells to run workers. It says how many; it has drained the ones that go."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


class CannotScale(Exception):
    """Workers could not be started or ended. The message says why; the autoscaler asks again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`wanted` workers shall run, without the ones in `stopping`, which are drained, have no task and may be
    ended now. `online` are all that are connected, those that stop among them."""

    wanted: int
    online: frozenset[str] = frozenset()
    stopping: tuple[str, ...] = ()


class Provisioner(Protocol):
    name: str
    tells_to_leave: bool
    """Whether a worker that stops is told to exit. Where something would start it again, it is not."""

    async def scale(self, wish: Wish) -> None:
        """Do what is missing; nothing if all is as wished. Called again and again. Raise `CannotScale`."""

    async def close(self) -> None:
        """Let go of what is held; end what would be left without a parent."""


def without(environment: dict[str, str], secrets: Collection[str]) -> dict[str, str]:
    """Return an environment without variables that begin like one of these."""
    hidden = tuple(secrets)
    return {name: value for name, value in environment.items() if not name.upper().startswith(hidden)}
