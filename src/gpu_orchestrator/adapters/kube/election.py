"""Leader election on a Lease: of several processes, at most one does the work.

    elector = Elector(client, "gpu-scheduler", "gpu-orchestrator-system", identity=pod_name)
    await elector.lead(work)        # waits, leads, runs `work()`; raises Lost when leadership is lost

A candidate takes the lease when nobody holds it, or when its record has not changed for a whole lease
duration *by the candidate's own clock*, so the clocks of different machines need not agree. The holder counts
from the moment before it sent its last successful renewal, and stops the work when `renew_s` has passed,
`lease_s - renew_s` before anybody can take the lease. Election gives no fencing: a write that must not come
late checks `is_leader` or carries its own guard.

    FOLLOWING ──took it──► LEADING ──work ended or cancelled──► work stopped, lease released
        ▲                    │
        └───────caller───────┴──not renewed within renew_s, or taken──► work cancelled, Lost raised
"""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from uuid import uuid4

import msgspec
import structlog

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict, KubeError, NotFound
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import LEASES, Lease, LeaseSpec
from gpu_orchestrator.api.wire import Json, ObjectMeta

# What work gets to stop in when the lease has already ended, as after a long sleep of the whole process.
STOP_S = 1.0
NEVER = float("-inf")

log = structlog.get_logger()


class Lost(Exception):  # a turn of events that callers wait for
    """We lead no longer, and the work has been stopped."""


@dataclass(frozen=True, slots=True)
class Times:
    """`lease_s`: others wait so long before they take over. `renew_s`: so long we lead without a renewal."""

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > self.retry_s > 0:
            raise ValueError(f"lease_s > renew_s > retry_s > 0 must hold, not {self}")


class Elector:
    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        *,
        identity: str,
        times: Times | None = None,
        clock: Callable[[], float] = elapsed_s,
        abort: Callable[[], None] = lambda: os._exit(70),
    ) -> None:
        if not identity:
            raise ValueError("an elector needs an identity that no other process has, e.g. the pod's name")
        self.identity, self._name, self._namespace = identity, name, namespace
        self._times = times or Times()
        self._clock, self._abort = clock, abort
        # One slow answer must leave time for another try before the deadline.
        self._client = client.with_limits(timeout_s=max(self._times.retry_s, self._times.renew_s / 2))
        self._seen = Lease(ObjectMeta())
        self._seen_at = NEVER
        self._renewed_at = NEVER
        self._is_unheard = False  # what we wrote last had no answer: it may have been granted all the same

    @property
    def is_leader(self) -> bool:
        """Whether we may work now. True again of a process that slept too long only after it has asked."""
        return self.leads_at(self._clock())

    def leads_at(self, moment: float) -> bool:
        """Whether we led at this moment of our clock, as far as is known now."""
        return moment < self._renewed_at + self._times.renew_s

    @property
    def holder(self) -> str:
        """Who held the lease when we last looked."""
        return self._seen.spec.holder_identity

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then do the work. Returns when it does; raises Lost if leadership goes first.

        When cancelled, the work is cancelled first and the lease released after it has ended.
        """
        await self._acquire()
        log.info("leading", lease=self._name, identity=self.identity)
        task = asyncio.ensure_future(work())
        try:
            await self._keep_while(task)
            lost = not task.done()
        finally:
            await self._stop(task)
            if self.is_leader:
                await self._release()
        error = None if task.cancelled() else task.exception()
        if lost:
            raise Lost(f"lease {self._namespace}/{self._name} was not kept; holder: {self.holder}") from error
        if error:
            raise error

    async def _acquire(self) -> None:
        while True:
            asked = asyncio.ensure_future(self._attempt())
            try:
                if await asyncio.shield(asked):
                    return
                await asyncio.sleep(self._times.retry_s * random.uniform(0.8, 1.2))  # noqa: S311  # only spreads
            except asyncio.CancelledError:
                await asyncio.wait([asked])  # given up on its way, it could be granted after we looked
                if self.is_leader or self._is_unheard:
                    await self._release()
                raise

    async def _keep_while(self, task: "asyncio.Future[None]") -> None:
        """Renew until the work ends or leadership does."""
        while not task.done() and self.is_leader:
            left_s = self._renewed_at + self._times.renew_s - self._clock()
            await asyncio.wait([task], timeout=min(self._times.retry_s, max(0.01, left_s)))
            if task.done() or not self.is_leader:
                break
            await self._renew()
        if not task.done():
            log.warning("leadership lost", lease=self._name, holder=self.holder)

    async def _renew(self) -> None:
        left_s = self._renewed_at + self._times.renew_s - self._clock()
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                if not await self._attempt() and self.holder != self.identity:
                    self._renewed_at = NEVER  # taken, or given away by hand: out at once

    async def _attempt(self) -> bool:
        """Take or renew the lease if that is ours to do; False if not, or if the server did not let us."""
        asked_at = self._clock()
        try:
            taken = await self._take()
        except KubeError as error:
            log.info("lease not taken", lease=self._name, error=str(error))
            return False
        if taken is None:
            return False
        self._see(taken)
        self._renewed_at = asked_at
        return True

    async def _take(self) -> Lease | None:
        if self._was_leading and self.holder == self.identity:
            # Ours a moment ago: no need to read it first. A Conflict may stem from our own lost answer.
            with suppress(Conflict, NotFound):
                return await self._write(self._seen)
        try:
            self._see(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            self._is_unheard = True
            return await self._client.create(LEASES, Lease(self._meta(), self._spec(LeaseSpec())))
        return await self._write(self._seen) if self._is_free() else None

    @property
    def _was_leading(self) -> bool:
        return self._renewed_at > NEVER

    def _see(self, found: Lease) -> None:
        """What counts is when *we* saw the record change, not the times others wrote into it."""
        if found.spec != self._seen.spec:
            self._seen_at = self._clock()
        self._seen, self._is_unheard = found, False

    def _is_free(self) -> bool:
        if self.holder in ("", self.identity):
            return True
        duration_s = self._seen.spec.lease_duration_seconds or self._times.lease_s
        return self._clock() >= self._seen_at + duration_s

    async def _write(self, seen: Lease) -> Lease:
        """Compare and set: refused with Conflict if anybody wrote since `seen`."""
        spec = msgspec.to_builtins(self._spec(seen.spec))
        version = seen.metadata.resource_version
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        self._is_unheard = True
        return await self._client.patch(LEASES, self._name, body, self._namespace)

    def _spec(self, old: LeaseSpec) -> LeaseSpec:
        now, ours = _now(), old.holder_identity == self.identity
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=ceil(self._times.lease_s),
            acquire_time=old.acquire_time if ours else now,
            renew_time=now,
            lease_transitions=old.lease_transitions + (not ours),
        )

    def _meta(self) -> ObjectMeta:
        return ObjectMeta(name=self._name, namespace=self._namespace)

    async def _stop(self, task: "asyncio.Future[None]") -> None:
        """The work must be at rest before anybody else can begin. If it will not stop, the process must."""
        task.cancel()
        lease_left_s = self._renewed_at + self._times.lease_s - self._clock()
        await asyncio.wait([task], timeout=max(STOP_S, lease_left_s))
        if not task.done():
            log.critical("work did not stop before the lease ended; ending the process", lease=self._name)
            self._abort()
        elif not task.cancelled() and task.exception():
            log.error("work ended with an error", lease=self._name, error=repr(task.exception()))

    async def _release(self) -> None:
        """Leave politely, so that the next one need not wait for the lease to run out."""
        self._renewed_at = NEVER
        try:
            async with asyncio.timeout(self._times.renew_s):
                await self._give_back()
        except (KubeError, TimeoutError) as error:
            log.info("lease not released", lease=self._name, error=repr(error))

    async def _give_back(self) -> None:
        """An attempt we no longer awaited may have been written after what we saw last: then look again."""
        while True:
            if self.holder == self.identity:
                with suppress(Conflict):
                    await self._client.patch(LEASES, self._name, self._vacant(), self._namespace)
                    log.info("lease released", lease=self._name)
                    return
            self._see(await self._client.get(LEASES, self._name, self._namespace))
            if self.holder != self.identity:
                return

    def _vacant(self) -> Json:
        return {
            "metadata": {"resourceVersion": self._seen.metadata.resource_version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()},
        }


def _now() -> str:
    return timestamps.micro_time(datetime.now(UTC))


def unique_identity(name: str = "") -> str:
    """An identity no other process has, also not the container that ran in the same pod before."""
    return f"{name or socket.gethostname()}_{uuid4().hex[:12]}"
