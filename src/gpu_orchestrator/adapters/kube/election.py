"""Leader election on a Lease: of several processes, at most one does the work.

    elector = Elector(client, "gpu-scheduler", "gpu-orchestrator-system", identity=pod_name)
    await elector.lead(work)        # waits, leads, runs `work()`; raises Lost when leadership is lost

A candidate takes the lease when it has no holder, or when its record has not changed for a whole lease
duration *by the candidate's own clock*, so the clocks of different machines need not agree. It looks every
`retry_s`, and at once when a watch shows that the lease was released. The holder counts
from the moment before it sent its last successful renewal, and stops the work when `renew_s` has passed,
`lease_s - renew_s` before another candidate can take the lease. Election gives no fencing: a write that must
not come late checks `is_leader` or carries its own guard.

    FOLLOWING ──acquired──► LEADING ──work ended or cancelled──► work stopped, lease released
        ▲                     │
        └───────caller────────┴──not renewed within renew_s, or taken──► work cancelled, Lost raised
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
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import LEASES, Lease, LeaseSpec
from gpu_orchestrator.api.wire import Json, ObjectMeta

# How long work may take to stop when the lease has already expired, as after a long sleep of the process.
STOP_S = 1.0
NEVER = float("-inf")

log = structlog.get_logger()


class Lost(Exception):  # an event that callers expect, not an error
    """We are no longer the leader, and the work has been stopped."""


@dataclass(frozen=True, slots=True)
class Times:
    """`lease_s`: how long others wait before they take over. `renew_s`: how long we lead without a renewal.
    `retry_s`: the pause between two tries.
    """

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > self.retry_s > 0:
            raise ValueError(f"lease_s > renew_s > retry_s > 0 must hold, not {self}")


class Elector:
    """`leases` is a watch that shows the lease among others; without one, a candidate finds a released lease
    at its next look."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        *,
        identity: str,
        times: Times | None = None,
        leases: Watch[Lease] | None = None,
        clock: Callable[[], float] = elapsed_s,
        abort: Callable[[], None] = lambda: os._exit(70),
    ) -> None:
        if not identity:
            raise ValueError("an elector needs an identity that no other process has, e.g. the pod's name")
        self.identity, self._name, self._namespace = identity, name, namespace
        self._times = times or Times()
        self._clock, self._abort, self._leases = clock, abort, leases
        self._released = asyncio.Event()
        # One slow answer must leave time for another try before the deadline.
        self._client = client.with_limits(timeout_s=max(self._times.retry_s, self._times.renew_s / 2))
        self._observed = Lease(ObjectMeta())
        self._observed_at = NEVER
        self._renewed_at = NEVER
        self._is_unanswered = False  # our last write had no answer yet: the server may have granted it

    @property
    def is_leader(self) -> bool:
        """True if we may work now. After a long sleep of the process, False until a renewal succeeds."""
        return self.leads_at(self._clock())

    def leads_at(self, moment: float) -> bool:
        """Return True if we led at this time of our clock, as far as we know now."""
        return moment < self._renewed_at + self._times.renew_s

    @property
    def holder(self) -> str:
        """The holder of the lease when we last read it."""
        return self._observed.spec.holder_identity

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, then run the work. Return when it ends; raise Lost if leadership goes first.

        When cancelled, cancel the work first and release the lease after the work has ended.
        """
        if self._leases is not None:
            self._leases.on_later_change(self._on_lease)
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
            self._released.clear()
            attempt = asyncio.ensure_future(self._try_once())
            try:
                if await asyncio.shield(attempt):
                    return
                await self._pause()
            except asyncio.CancelledError:
                # Wait for the attempt: the server could grant it after we looked.
                await asyncio.wait([attempt])
                if self.is_leader or self._is_unanswered:
                    await self._release()
                raise

    async def _pause(self) -> None:
        """Wait until the next try, or until the lease is released."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.retry_s * random.uniform(0.8, 1.2)):  # noqa: S311  # only spreads
                await self._released.wait()

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        meta = (new or old or self._observed).metadata
        is_held = new is not None and new.spec.holder_identity
        if (meta.name, meta.namespace) == (self._name, self._namespace) and not is_held:
            self._released.set()

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
                if not await self._try_once() and self.holder != self.identity:
                    # Another process took it, or a person changed the holder: stop at once.
                    self._renewed_at = NEVER

    async def _try_once(self) -> bool:
        """Acquire or renew the lease. Return False if another process holds it or the server refused."""
        sent_at = self._clock()
        try:
            written = await self._acquire_or_renew()
        except KubeError as error:
            log.info("lease not taken", lease=self._name, error=str(error))
            return False
        if written is None:
            return False
        self._observe(written)
        self._renewed_at = sent_at
        return True

    async def _acquire_or_renew(self) -> Lease | None:
        if self._was_leading and self.holder == self.identity:
            # We held it a moment ago, so skip the read. A Conflict may come from our own lost answer.
            with suppress(Conflict, NotFound):
                return await self._write(self._observed)
        try:
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            self._is_unanswered = True
            return await self._client.create(LEASES, Lease(self._meta(), self._spec(LeaseSpec())))
        return await self._write(self._observed) if self._is_free() else None

    @property
    def _was_leading(self) -> bool:
        return self._renewed_at > NEVER

    def _observe(self, found: Lease) -> None:
        """Store the record and when *we* saw it change; the times that others wrote into it do not count."""
        if found.spec != self._observed.spec:
            self._observed_at = self._clock()
        self._observed, self._is_unanswered = found, False

    def _is_free(self) -> bool:
        if self.holder in ("", self.identity):
            return True
        duration_s = self._observed.spec.lease_duration_seconds or self._times.lease_s
        return self._clock() >= self._observed_at + duration_s

    async def _write(self, seen: Lease) -> Lease:
        """Compare and set: raise Conflict if the lease was written since `seen`."""
        spec = msgspec.to_builtins(self._spec(seen.spec))
        version = seen.metadata.resource_version
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        self._is_unanswered = True
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
        """Stop the work before another process can start it. If the work does not stop, end the process."""
        task.cancel()
        lease_left_s = self._renewed_at + self._times.lease_s - self._clock()
        await asyncio.wait([task], timeout=max(STOP_S, lease_left_s))
        if not task.done():
            log.critical("work did not stop before the lease ended; ending the process", lease=self._name)
            self._abort()
        elif not task.cancelled() and task.exception():
            log.error("work ended with an error", lease=self._name, error=repr(task.exception()))

    async def _release(self) -> None:
        """Clear the holder, so that the next leader need not wait until the lease expires."""
        self._renewed_at = NEVER
        try:
            async with asyncio.timeout(self._times.renew_s):
                await self._clear_holder()
        except (KubeError, TimeoutError) as error:
            log.info("lease not released", lease=self._name, error=repr(error))

    async def _clear_holder(self) -> None:
        """Write an empty holder. If an abandoned attempt of ours changed the lease since, read it again."""
        while True:
            if self.holder == self.identity:
                with suppress(Conflict):
                    await self._client.patch(LEASES, self._name, self._without_holder(), self._namespace)
                    log.info("lease released", lease=self._name)
                    return
            self._observe(await self._client.get(LEASES, self._name, self._namespace))
            if self.holder != self.identity:
                return

    def _without_holder(self) -> Json:
        return {
            "metadata": {"resourceVersion": self._observed.metadata.resource_version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()},
        }


def _now() -> str:
    return timestamps.micro_time(datetime.now(UTC))


def unique_identity(name: str = "") -> str:
    """Return an identity that no other process has, not even an earlier container of the same pod."""
    return f"{name or socket.gethostname()}_{uuid4().hex[:12]}"
