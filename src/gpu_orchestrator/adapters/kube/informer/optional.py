"""Watch a kind that the API server may not serve, or that we may not read. Until it is there, the watch
counts as synced and shows nothing; it looks again now and then.

    groups = OptionalWatch(client, POD_GROUPS)
    groups.on_switch(handler)                  # handler(), called when the kind comes or goes

To ask first costs the server nothing and leaves no refused requests in its audit log.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.kube import errors, reviews
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api.wire import Object, Resource

T = TypeVar("T", bound=Object)

LOOK_AGAIN_S = 60.0

log = structlog.get_logger()


class OptionalWatch(Watch[T]):
    """`absent` says why the kind is not watched; empty while it is."""

    def __init__(
        self, client: Client, resource: Resource[T], *, look_again_s: float = LOOK_AGAIN_S, **options: Any
    ) -> None:
        super().__init__(client, resource, **options)
        self.absent = ""
        self._look_again_s, self._is_there = look_again_s, False
        self._switched: list[Callable[[], None]] = []

    def on_switch(self, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `absent` has changed."""
        self._switched.append(handler)

    async def _turn(self) -> None:
        if not self._is_there and not await self._look():
            await asyncio.sleep(self._look_again_s)
            return
        try:
            await super()._turn()
        except (errors.NotServed, errors.NotFound, errors.Forbidden):
            self._is_there = False  # the next turn asks again; what the store shows stays
            raise

    async def _look(self) -> bool:
        absent = await self._missing()
        self._is_there = not absent
        if absent != self.absent:
            self.absent = absent
            log.info("optional kind", resource=self._resource.plural, watched=not absent, why=absent)
            for each in self._switched:
                each()
        if absent:
            self._synced.set()
        return self._is_there

    async def _missing(self) -> str:
        """Return why the kind cannot be watched; empty if it can."""
        kind = self._resource
        served = await reviews.served(self._client, kind.group, kind.version)
        if kind.plural not in served:
            return f"the API server does not serve {kind.plural} of {kind.api_version}"
        may_watch = reviews.Access("watch", kind.plural, kind.group, self._namespace)
        if not await reviews.may_i(self._client, may_watch):
            return f"the scheduler may not {may_watch}"
        return ""
