"""Write the node's GpuNodeStatus: when something changed beyond noise, and at least every `refresh_s`.

Server-side apply, so that what the agent no longer sees goes away. A burst of changes is a few writes, then
one every few seconds with the newest state: see `pace`.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import AlreadyExists, KubeError, NotFound
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.api.gpunodestatus import (
    GPU_NODE_STATUSES,
    GpuNodeStatus,
    GpuNodeStatusSpec,
    GpuNodeStatusStatus,
)
from gpu_orchestrator.api.names import AGENT
from gpu_orchestrator.api.wire import ObjectMeta, OwnerReference
from gpu_orchestrator.apps.agent import survey
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.pace import Pace

BURST, EVERY_S = 6, 5.0
RETRY_S = (1.0, 30.0)
CHECK_S = 30.0
"""How often the agent looks whether its report is still there."""
OVERDUE_S = 60.0
"""A change that could not be written for so long: the report is not current any more."""

NEVER = float("-inf")

_STATUSES = ignore_answer(GPU_NODE_STATUSES)

log = structlog.get_logger()


class Publisher:
    """`written` is called after each write. `owner` returns the Node, so that the report is deleted with
    it."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        refresh_s: float,
        clock: Callable[[], float],
        owner: Callable[[], list[OwnerReference]],
        metrics: Metrics,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._node, self._refresh_s = client, node, refresh_s
        self._clock, self._owner, self._metrics, self._written = clock, owner, metrics, written
        self._pace = Pace(BURST, EVERY_S)
        self._changed = asyncio.Event()
        self._latest: GpuNodeStatusStatus | None = None
        self._looked_at = NEVER
        self._is_certain = False  # a write whose answer was lost may have been done
        self.covers = NEVER
        """When the last look began that the written report tells of."""
        self.published: GpuNodeStatusStatus | None = None
        self._behind_since: float | None = None

    @property
    def report(self) -> GpuNodeStatus | None:
        """What was written last, as others read it."""
        return self._object(self.published) if self.published is not None else None

    def is_current(self) -> bool:
        """True if the report is what the agent sees, or has been for less than a minute."""
        behind = self._behind_since
        return self.published is not None and (behind is None or self._clock() - behind < OVERDUE_S)

    def offer(self, status: GpuNodeStatusStatus, looked_at: float = NEVER) -> None:
        """Keep the newest status, and write it if it says something new. `looked_at` is when the look began
        that it is from."""
        self._latest, self._looked_at = status, looked_at
        if self.published is None or survey.differs(self.published, status):
            self._changed.set()
            self.fall_behind()
        elif self._is_certain:
            self.covers, self._behind_since = looked_at, None

    def fall_behind(self) -> None:
        """The report is not what the agent sees, or it does not know what it sees."""
        self._behind_since = self._clock() if self._behind_since is None else self._behind_since

    async def run(self, stopped: asyncio.Event) -> None:
        failures = 0
        while not stopped.is_set():
            await wait_until_set(self._changed, self._pause_s(failures))
            if wait_s := self._pace.wait_s(self._clock()):
                await wait_until_set(stopped, wait_s)
                continue
            if self._latest is not None and not stopped.is_set():
                failures = 0 if await self.publish(self._latest) else failures + 1
            if failures:
                least, most = RETRY_S
                await wait_until_set(stopped, min(least * 2.0 ** (failures - 1), most))

    async def guard(self, stopped: asyncio.Event) -> None:
        """Write the report again when somebody has deleted it: without it the scheduler gives no device of
        the node. Watches by name would cost the API server more: it holds each report that is written
        against all of them."""
        while not stopped.is_set():
            await wait_until_set(stopped, CHECK_S * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load
            if self.published is not None and await self._is_gone():
                log.warning("report is gone; writing it again", node=self._node)
                self._is_certain = False
                self._changed.set()

    async def _is_gone(self) -> bool:
        try:
            await self._client.get(_STATUSES, self._node)
        except NotFound:
            return True
        except KubeError as error:
            log.info("report not looked for", node=self._node, error=str(error))
        return False

    def _pause_s(self, failures: int) -> float:
        if failures:
            return 0.0
        return self._refresh_s * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load

    async def publish(self, status: GpuNodeStatusStatus) -> bool:
        """Write a status now; return False if that failed."""
        self._changed.clear()
        looked_at, self._is_certain = self._looked_at, False
        try:
            await self._write(status)
        except KubeError as error:
            self._metrics.error("report")
            log.warning("report not written", node=self._node, error=str(error))
            self._changed.set()
            return False
        self._metrics.wrote("report")
        self.published, self._behind_since = status, None
        self.covers, self._is_certain = looked_at, True
        if self._latest is not None:
            self.offer(self._latest, self._looked_at)  # it may have changed meanwhile
        self._written()
        return True

    async def _write(self, status: GpuNodeStatusStatus) -> None:
        try:
            await self._apply(status)
        except NotFound:
            if not self._owner():
                raise  # the Node is gone, and its report with it: nobody would ever delete another one
            await self._create()
            await self._apply(status)

    async def _create(self) -> None:
        with suppress(AlreadyExists):  # an answer of ours may have been lost
            await self._client.create(_STATUSES, self._object(GpuNodeStatusStatus()), idempotent=True)

    async def _apply(self, status: GpuNodeStatusStatus) -> None:
        report = _without_empty(msgspec.to_builtins(self._object(status)))
        await self._client.apply(_STATUSES, self._node, report, manager=AGENT, subresource="status")

    def _object(self, status: GpuNodeStatusStatus) -> GpuNodeStatus:
        meta = ObjectMeta(name=self._node, owner_references=self._owner())
        return GpuNodeStatus(meta, GpuNodeStatusSpec(self._node), status)


def _without_empty(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is an empty map. Where it had fields before, server-side apply would take those away,
    make it null, and refuse that together with the whole report."""
    status = {name: value for name, value in report["status"].items() if value != {}}
    return {**report, "status": status}
