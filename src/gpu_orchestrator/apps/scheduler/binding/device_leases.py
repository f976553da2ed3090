"""Acquire and release device leases. The API server decides in one write which pod holds a device.

Exclusive: creating the Lease takes the device. Shared: an entry is added to the Lease's holders by
compare-and-set. If a Lease already names our pod (its answer was lost, or another scheduler binds the same
pod), we take it over by writing to it. Then its creator cannot delete it any more, because every removal
names the version it has seen.

    free ──create──▶ held ──take over (version moves)──▶ held ──delete at that version──▶ free
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

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
    """A hold of one device as we know it; a removal must find it unchanged. `is_new`: this acquire made it;
    otherwise the pod had it before, perhaps from another scheduler that binds it now."""

    ref: DeviceRef
    holder: Holder
    uid: str
    version: str
    exclusive: bool
    is_new: bool = field(default=False, compare=False)
    lease: Lease | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HeldByOther:
    """Another holder has the device; `lease` is the Lease found, if it was still there."""

    ref: DeviceRef
    lease: Lease | None = None

    def __str__(self) -> str:
        if self.lease is not None and not deviceleases.is_device(self.lease):
            return obstruction(self.ref)
        holders = deviceleases.holders(self.lease) if self.lease else ()
        held_by = ", ".join(f"{each.namespace}/{each.pod}" for each in holders)
        held_by = held_by or "a holder that just released it"
        return f"device {self.ref.device} of {self.ref.node} is held by {held_by}"


def obstruction(ref: DeviceRef) -> str:
    """Return the message for a device whose lease name is taken by an unrelated Lease."""
    return (
        f"device {ref.device} of {ref.node} cannot be leased: "
        f"Lease {ref.lease} exists and is not a device lease; "
        "if it is the heartbeat of another node's agent, rename one of the nodes, else delete it"
    )


def holds(lease: Lease) -> list[LeaseHold]:
    """Return every hold in a Lease."""
    meta = lease.metadata
    return [
        LeaseHold(each.ref, each.holder, meta.uid, meta.resource_version, each.exclusive)
        for each in deviceleases.holds(lease)
    ]


def holds_of(uid: str, leases: Iterable[Lease]) -> list[LeaseHold]:
    """Return every hold of one pod in these leases."""
    return [hold for lease in leases for hold in holds(lease) if hold.holder.uid == uid]


class DeviceLeases:
    """`known` is the store of the lease watch, with our own writes laid over it."""

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
        self._locks: dict[str, _CountedLock] = {}

    async def acquire(self, ref: DeviceRef, holder: Holder, *, exclusive: bool) -> LeaseHold | HeldByOther:
        acquire = self._acquire_exclusive if exclusive else self._acquire_shared
        result = await acquire(ref, holder)
        self._metrics.lease("acquire", "ok" if isinstance(result, LeaseHold) else "taken")
        return result

    async def release(self, hold: LeaseHold) -> bool:
        """Release the device if the hold is unchanged. Return False if another scheduler took it over."""
        if hold.exclusive:
            gone = await self._delete(hold.ref, hold.uid, hold.version)
        else:
            gone = await self._release_shared(hold)
        self._metrics.lease("release", "ok" if gone else "kept")
        return gone

    async def _acquire_exclusive(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        made = deviceleases.exclusive(ref, holder, self._namespace)
        try:
            lease = await self._client.create(LEASES, made, idempotent=True)
        except AlreadyExists:
            return await self._take_over(ref, holder)
        return replace(_hold(ref, holder, lease), is_new=True)

    async def _take_over(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        found = await self._read(ref)
        if found is None or not deviceleases.is_device(found) or found.spec.holder_identity != holder.uid:
            return HeldByOther(ref, found)
        body: Json = {"spec": {"acquireTime": holder.since, "renewTime": self._now()}}
        if found.metadata.annotations.get(names.QUEUE, "") != holder.queue:
            body["metadata"] = {"annotations": {names.QUEUE: holder.queue or None}}
        lease = await self._write(ref, found, body)
        return HeldByOther(ref) if lease is None else _hold(ref, holder, lease)

    async def _acquire_shared(self, ref: DeviceRef, holder: Holder) -> LeaseHold | HeldByOther:
        """Add an entry to the device's holders. A lock orders the writes of this process; the version guards
        against other processes."""
        async with self._locked(ref.lease):
            lease = self._newest(ref)
            for _ in range(TRIES):
                written = await self._try_join(ref, holder, lease)
                if isinstance(written, HeldByOther):
                    return written
                if written is not None:
                    self._known.keep(written)
                    before = deviceleases.holders(lease) if lease else ()
                    is_new = all(each.uid != holder.uid for each in before)
                    return replace(_hold(ref, holder, written, exclusive=False), is_new=is_new)
                lease = await self._read(ref)
            return HeldByOther(ref, lease)

    async def _try_join(
        self, ref: DeviceRef, holder: Holder, lease: Lease | None
    ) -> Lease | HeldByOther | None:
        """Write the entry once; return None if another write came first, and the caller must read again."""
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
        return await self._write(ref, lease, _holders_patch([*others, holder]))

    async def _release_shared(self, hold: LeaseHold) -> bool:
        """Remove an entry from the device's holders, and delete the Lease with the last one."""
        async with self._locked(hold.ref.lease):
            lease = self._newest(hold.ref)
            for _ in range(TRIES):
                if lease is None or hold.holder not in deviceleases.holders(lease):
                    lease = await self._read(hold.ref)  # the watch may lag behind
                if lease is None:
                    return True
                known = deviceleases.holders(lease)
                if hold.holder not in known:
                    return hold.holder.uid not in {each.uid for each in known}
                if await self._remove_entry(hold, lease):
                    return True
                lease = None
            return False

    async def _remove_entry(self, hold: LeaseHold, lease: Lease) -> bool:
        left = [each for each in deviceleases.holders(lease) if each != hold.holder]
        if not left:
            self._known.forget(self._key(hold.ref))
            return await self._delete(hold.ref, lease.metadata.uid, lease.metadata.resource_version)
        written = await self._write(hold.ref, lease, _holders_patch(left))
        if written is not None:
            self._known.keep(written)
        return written is not None

    async def _read(self, ref: DeviceRef) -> Lease | None:
        try:
            return await self._client.get(LEASES, ref.lease, self._namespace)
        except NotFound:
            return None

    async def _write(self, ref: DeviceRef, seen: Lease, body: Json) -> Lease | None:
        """Patch the Lease; return None if it has changed since it was seen."""
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

    def _newest(self, ref: DeviceRef) -> Lease | None:
        """Return the newest state we know: the watch may lag behind our own writes."""
        return self._known.get(self._key(ref))

    def _key(self, ref: DeviceRef) -> str:
        return f"{self._namespace}/{ref.lease}"

    @asynccontextmanager
    async def _locked(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of this name. The last user removes it."""
        entry = self._locks.setdefault(name, _CountedLock())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                self._locks.pop(name, None)


@dataclass(slots=True)
class _CountedLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


def _hold(ref: DeviceRef, holder: Holder, lease: Lease, *, exclusive: bool = True) -> LeaseHold:
    meta = lease.metadata
    return LeaseHold(ref, holder, meta.uid, meta.resource_version, exclusive, lease=lease)


def _holders_patch(holders: list[Holder]) -> Json:
    return {"metadata": {"annotations": {names.LEASE_HOLDERS: deviceleases.encode(holders)}}}
