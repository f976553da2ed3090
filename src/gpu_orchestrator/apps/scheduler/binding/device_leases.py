"""The guard of the devices: who holds one is decided by the API server, in one write.

Exclusive: creating the Lease takes the device. Shared: an entry is added to the Lease's holders by
compare-and-set. A Lease that names our pod already (an answer that was lost, or another scheduler at the same
pod) is taken over by writing to it, so that whoever made it can no longer delete it: every removal names the
version it has seen.

    nobody's ──create──▶ held ──take over (version moves)──▶ held ──delete at that version──▶ nobody's
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import AlreadyExists, Conflict, NotFound
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.api import deviceleases, names
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import LEASES, Lease
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.scheduler.metrics import Metrics

TRIES = 12


@dataclass(frozen=True, slots=True)
class LeaseHold:
    """A hold of one device, as we know it: what a removal must find unchanged."""

    ref: DeviceRef
    holder: Holder
    uid: str
    version: str
    exclusive: bool


@dataclass(frozen=True, slots=True)
class HeldByOther:
    """Somebody else has the device; `lease` is what was found, if it was still there."""

    ref: DeviceRef
    lease: Lease | None = None

    def __str__(self) -> str:
        if self.lease is not None and not deviceleases.is_device(self.lease):
            return obstruction(self.ref)
        holders = deviceleases.holders(self.lease) if self.lease else ()
        who = ", ".join(f"{each.namespace}/{each.pod}" for each in holders) or "somebody who just left"
        return f"device {self.ref.device} of {self.ref.node} is held by {who}"


def obstruction(ref: DeviceRef) -> str:
    """In words: a Lease of something else has the name of the device's."""
    return (
        f"device {ref.device} of {ref.node} cannot be held: Lease {ref.lease} exists and is no device's; "
        "if it is the sign of life of another node's agent, rename one of the nodes, else delete it"
    )


def holds(lease: Lease) -> list[LeaseHold]:
    """Every hold that a Lease speaks of."""
    ref, meta = deviceleases.device_ref(lease), lease.metadata
    if ref is None:
        return []
    exclusive = not deviceleases.is_shared(lease)
    return [
        LeaseHold(ref, holder, meta.uid, meta.resource_version, exclusive)
        for holder in deviceleases.holders(lease)
    ]


def holds_of(uid: str, leases: Iterable[Lease]) -> list[LeaseHold]:
    """Every hold of one pod in these leases."""
    return [hold for lease in leases for hold in holds(lease) if hold.holder.uid == uid]


class DeviceLeases:
    """`known` is the live copy of leases, with our own writes laid over it."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        known: Overlay[Lease],
        *,
        metrics: Metrics,
        now: Callable[[], str],
    ) -> None:
        self._client, self._namespace, self._known = client, namespace, known
        self._metrics, self._now = metrics, now
        self._turns: dict[str, _Turn] = {}

    async def acquire(self, ref: DeviceRef, holder: Holder, *, exclusive: bool) -> LeaseHold | HeldByOther:
        result = await (self._take(ref, holder) if exclusive else self._join(ref, holder))
        self._metrics.lease("acquire", "ok" if isinstance(result, LeaseHold) else "taken")
        return result

    async def release(self, hold: LeaseHold) -> bool:
        """Give the device back, if the hold is still the one we know. False if somebody took it over."""
        gone = await (self._delete(hold.ref, hold.uid, hold.version) if hold.exclusive else self._part(hold))
        self._metrics.lease("release", "ok" if gone else "kept")
        return gone

    async def _take(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        made = deviceleases.exclusive(ref, holder, self._namespace)
        try:
            lease = await self._client.create(LEASES, made, idempotent=True)
        except AlreadyExists:
            return await self._take_over(ref, holder)
        return _hold(ref, holder, lease)

    async def _take_over(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        found = await self._read(ref)
        if found is None or not deviceleases.is_device(found) or found.spec.holder_identity != holder.uid:
            return HeldByOther(ref, found)
        spec = {"acquireTime": holder.since, "renewTime": self._now()}
        lease = await self._write(ref, found, {"spec": spec})
        return HeldByOther(ref) if lease is None else _hold(ref, holder, lease)

    async def _join(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        """Add an entry to the device's holders; one at a time in this process, by version among several."""
        async with self._alone(ref.lease):
            lease = self._latest(ref)
            for _ in range(TRIES):
                written = await self._joined(ref, holder, lease)
                if isinstance(written, HeldByOther):
                    return written
                if written is not None:
                    self._known.keep(written)
                    return _hold(ref, holder, written, exclusive=False)
                lease = await self._read(ref)
            return HeldByOther(ref, lease)

    async def _joined(
        self, ref: DeviceRef, holder: Holder, lease: Lease | None
    ) -> Lease | HeldByOther | None:
        """None when somebody else wrote first: look again."""
        if lease is None:
            made = deviceleases.shared(ref, [holder], self._namespace, self._now())
            try:
                return await self._client.create(LEASES, made, idempotent=True)
            except AlreadyExists:
                return None
        others = [each for each in deviceleases.holders(lease) if each.uid != holder.uid]
        is_shared = deviceleases.is_device(lease) and deviceleases.is_shared(lease)
        if not is_shared or not deviceleases.fits(others, holder, ref.memory_mib):
            return HeldByOther(ref, lease)
        return await self._write(ref, lease, _holders([*others, holder]))

    async def _part(self, hold: LeaseHold) -> bool:
        """Take an entry out of the device's holders; the last one takes the Lease with it."""
        async with self._alone(hold.ref.lease):
            lease = self._latest(hold.ref)
            for _ in range(TRIES):
                if lease is None or hold.holder not in deviceleases.holders(lease):
                    lease = await self._read(hold.ref)  # the watch may lag behind
                if lease is None:
                    return True
                known = deviceleases.holders(lease)
                if hold.holder not in known:
                    return hold.holder.uid not in {each.uid for each in known}
                if await self._without(hold, lease):
                    return True
                lease = None
            return False

    async def _without(self, hold: LeaseHold, lease: Lease) -> bool:
        left = [each for each in deviceleases.holders(lease) if each != hold.holder]
        if not left:
            self._known.forget(self._key(hold.ref))
            return await self._delete(hold.ref, lease.metadata.uid, lease.metadata.resource_version)
        written = await self._write(hold.ref, lease, _holders(left))
        if written is not None:
            self._known.keep(written)
        return written is not None

    async def _read(self, ref: DeviceRef) -> Lease | None:
        try:
            return await self._client.get(LEASES, ref.lease, self._namespace)
        except NotFound:
            return None

    async def _write(self, ref: DeviceRef, seen: Lease, body: Json) -> Lease | None:
        """None when the Lease is no longer what was seen."""
        guard = {"resourceVersion": seen.metadata.resource_version}
        body = {**body, "metadata": {**body.get("metadata", {}), **guard}}
        try:
            return await self._client.patch(LEASES, ref.lease, body, self._namespace)
        except (Conflict, NotFound):
            return None

    async def _delete(self, ref: DeviceRef, uid: str, version: str) -> bool:
        try:
            await self._client.delete(LEASES, ref.lease, self._namespace, uid=uid, resource_version=version)
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    def _latest(self, ref: DeviceRef) -> Lease | None:
        """The newest state we know: the watch may lag behind our own writes."""
        return self._known.get(self._key(ref))

    def _key(self, ref: DeviceRef) -> str:
        return f"{self._namespace}/{ref.lease}"

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """One at a time per name; a name nobody waits for is forgotten."""
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                self._turns.pop(name, None)


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


def _hold(ref: DeviceRef, holder: Holder, lease: Lease, *, exclusive: bool = True) -> LeaseHold:
    return LeaseHold(ref, holder, lease.metadata.uid, lease.metadata.resource_version, exclusive)


def _holders(holders: list[Holder]) -> Json:
    return {"metadata": {"annotations": {names.LEASE_HOLDERS: deviceleases.encode(holders)}}}
