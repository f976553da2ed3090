"""The agent's sign of life: the Lease `gpu-agent-<node>`, renewed every 30 s; others believe it for 90 s.

It also keeps two agents off one node: the second waits while the first renews. An agent that starts again in
the same pod has the same identity and goes on at once; one that ends cleanly leaves the Lease without a
holder.

    WAITING ──no holder, ours, or not renewed for TAKE_OVER times──► HOLDING ──another holds it──► Displaced

It is renewed only while the report is current, so that a live agent means a true report. Its annotation
`gpu.scheduling/looked-at` says how true: when the last look began that the written report tells of. A driver
may hang, or the report be refused, while the Lease is renewed, and the scheduler gives on the devices of a
pod that was deleted by force only after a look from after its end. So that it need not wait for the next sign
of life, one is due soon after a pod is gone: `owe`.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import isfinite

import msgspec
import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.kubernetes import LEASES, Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta, OwnerReference

TAKE_OVER = 2
"""An agent that did not renew for this many times its period is gone."""
LOOK_S = 5.0
RETRY_S = 5.0
LIVE_S = 90
MARGIN_S = 3.0
"""How long after a pod is gone a look begins that surely is from after its end, wherever its end is seen."""

log = structlog.get_logger()


class Displaced(Exception):  # an event that callers expect, not an error
    """Another agent took this node over."""


class Heartbeat:
    """`owner` returns the Node, so that the Lease is deleted with it; `is_current` whether the report is;
    `covers` when the last look began, on our clock, that the written report tells of."""

    def __init__(
        self,
        client: Client,
        node: str,
        namespace: str,
        *,
        identity: str,
        every_s: float,
        clock: Callable[[], float],
        owner: Callable[[], list[OwnerReference]],
        is_current: Callable[[], bool],
        covers: Callable[[], float],
    ) -> None:
        self._client = client.with_limits(timeout_s=every_s)
        self._name, self._namespace = f"{names.AGENT_LEASE_PREFIX}{node}", namespace
        self._identity, self._every_s, self._clock = identity, every_s, clock
        self._owner, self._is_current, self._covers = owner, is_current, covers
        self._owed: list[float] = []
        self._due = asyncio.Event()
        self._held: Lease | None = None
        self._seen = LeaseSpec()
        self._seen_at = clock()
        self.waits_for = ""
        """The other agent that we wait for, or why the Lease cannot be taken."""
        self.is_displaced = False
        """Another agent has this node now, and its report."""

    async def acquire(self) -> None:
        """Wait until this node has no other agent, and take the Lease."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(min(LOOK_S, self._every_s))
        self.waits_for = ""
        self.owe()
        log.info("heartbeat started", lease=self._name, identity=self._identity)

    async def _try(self) -> bool:
        try:
            self._held = await self._take()
        except KubeError as error:
            self._wait_for(str(error))
        return self._held is not None

    async def _take(self) -> Lease | None:
        try:
            found = await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            return await self._create()
        if found.spec != self._seen:
            self._seen, self._seen_at = found.spec, self._clock()
        holder = found.spec.holder_identity
        is_gone = self._clock() - self._seen_at >= TAKE_OVER * self._every_s
        if holder in ("", self._identity) or is_gone:
            return await self._write(found)
        self._wait_for(f"agent {holder} of this node")
        return None

    def _wait_for(self, what: str) -> None:
        if what != self.waits_for:
            log.warning("waiting with the heartbeat", lease=self._name, reason=what)
        self.waits_for = what

    async def run(self, stopped: asyncio.Event) -> None:
        """Renew until stopped; raise `Displaced` if another agent holds the Lease."""
        while not stopped.is_set():
            self._due.clear()
            pause_s = self._every_s * random.uniform(0.9, 1.0)  # noqa: S311 - spreads load
            if not (self._is_current() and await self._renew()):
                pause_s = min(RETRY_S, pause_s)
            await _first_of(stopped, self._due, within_s=pause_s)

    def owe(self) -> None:
        """A pod is gone: renew as soon as the report tells of a look from after that."""
        self._owed.append(self._clock())

    def check(self) -> None:
        """Renew now if that is owed. The caller has just looked, or written."""
        covers = self._covers() - MARGIN_S
        if any(at <= covers for at in self._owed):
            self._owed = [at for at in self._owed if at > covers]
            self._due.set()

    async def _renew(self) -> bool:
        try:
            self._held = await self._write(self._held) if self._held else await self._create()
        except NotFound:
            self._held = None
            return False
        except Conflict:
            await self._look_again()
            return False
        except KubeError as error:
            log.warning("heartbeat not written", lease=self._name, error=str(error))
            return False
        if self._held is None:  # it had been deleted, and somebody made it before us
            await self._look_again()
        self.waits_for = "" if self._held else self.waits_for
        return self._held is not None

    async def _look_again(self) -> None:
        """Read the Lease after somebody else wrote it; our own write whose answer was lost may be that."""
        try:
            found = await self._client.get(LEASES, self._name, self._namespace)
        except KubeError:
            return
        if found.spec.holder_identity != self._identity:
            self.is_displaced = True
            raise Displaced(f"lease {self._name} is held by {found.spec.holder_identity or 'nobody'}")
        self._held = found

    async def release(self) -> None:
        """Leave the Lease without a holder. It stays as old as it is: the report is true a while longer."""
        held, self._held = self._held, None
        if held is None:
            return
        version = held.metadata.resource_version
        body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}}
        try:
            await self._client.with_limits(timeout_s=RETRY_S).patch(LEASES, self._name, body, self._namespace)
        except KubeError as error:
            log.info("heartbeat not released", lease=self._name, error=str(error))

    async def _create(self) -> Lease | None:
        """Return the new Lease; None if there is one, or if there is no Node: nobody would ever delete it."""
        if not (owner := self._owner()):
            self._wait_for("the Node of this agent, which is not there")
            return None
        now = datetime.now(UTC)
        meta = ObjectMeta(
            name=self._name,
            namespace=self._namespace,
            annotations=self._annotations(now),
            owner_references=owner,
        )
        try:
            return await self._client.create(LEASES, Lease(meta, self._spec(LeaseSpec(), now)))
        except AlreadyExists:
            return None

    async def _write(self, found: Lease) -> Lease:
        """Compare and set: raise Conflict if the Lease was written since."""
        now, version = datetime.now(UTC), found.metadata.resource_version
        body = {
            "metadata": {"resourceVersion": version, "annotations": self._annotations(now)},
            "spec": msgspec.to_builtins(self._spec(found.spec, now)),
        }
        return await self._client.patch(LEASES, self._name, body, self._namespace)

    def _annotations(self, now: datetime) -> dict[str, str]:
        """Return when the look began that the report tells of; empty if it tells of none of ours."""
        age_s = self._clock() - self._covers()
        looked_at = timestamps.micro_time(now - timedelta(seconds=age_s)) if isfinite(age_s) else ""
        return {names.LOOKED_AT: looked_at}

    def _spec(self, old: LeaseSpec, moment: datetime) -> LeaseSpec:
        now = timestamps.micro_time(moment)
        is_ours = old.holder_identity == self._identity
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=LIVE_S,
            acquire_time=old.acquire_time if is_ours else now,
            renew_time=now,
            lease_transitions=old.lease_transitions + (not is_ours),
        )


async def _first_of(*events: asyncio.Event, within_s: float) -> None:
    """Return when one of the events is set, or after `within_s`."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
