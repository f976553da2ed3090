"""Device leases by device and by pod, and which of them count as taken.

A lease counts by itself unless its holder already counts the device: a pod being bound by the engine's
assumption, a bound pod by its own placement. So each device is counted exactly once at any moment, and stays
taken when an ended pod leaves its lease behind. An unrelated Lease with a device lease's name also takes the
device: the device could not be leased.
"""

from collections.abc import Callable

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved


class LeaseIndex:
    """`placement_of` returns what a pod already counts, by its UID; `store` is that of the lease watch."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        placement_of: Callable[[str], Placement | None],
        store: Store[Lease],
    ) -> None:
        self._feed, self._placement_of, self._store = feed, placement_of, store
        self._found: dict[str, Lease] = {}
        self._counted: dict[str, dict[str, Placement]] = {}
        self._by_pod: dict[str, dict[str, Lease]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_pod

    def of(self, uid: str) -> list[Lease]:
        """Return the device leases that name this pod."""
        return list(self._by_pod.get(uid, {}).values())

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None:
            return
        name, before, after = lease.metadata.name, _holders(old), _holders(new)
        for uid in before - after:
            self._drop(uid, name)
        for uid in after:
            self._by_pod.setdefault(uid, {})[name] = lease
        self._update(name, new)

    def add_found(self, lease: Lease) -> None:
        """Count a lease that a failed acquire found, maybe before the watch shows it."""
        self._found[lease.metadata.name] = lease
        self._update(lease.metadata.name, lease)

    def forget_found(self) -> None:
        """Forget leases that failed acquires found and the watch never showed: they may be deleted by now,
        and the watch would never report that. A later failed acquire adds them again."""
        found, self._found = self._found, {}
        for name, lease in found.items():
            self._update(name, self._store.get(key(lease)))

    def recount(self, uid: str) -> None:
        """Update the pod's leases after the devices that it counts itself have changed."""
        for name, lease in list(self._by_pod.get(uid, {}).items()):
            self._update(name, lease)

    def _drop(self, uid: str, name: str) -> None:
        mine = self._by_pod.get(uid, {})
        mine.pop(name, None)
        if not mine:
            self._by_pod.pop(uid, None)

    def _update(self, name: str, lease: Lease | None) -> None:
        wanted = self._placements(lease) if lease else {}
        counted = self._counted.pop(name, {})
        if wanted:
            self._counted[name] = wanted
        for uid, placement in wanted.items():
            if counted.get(uid) != placement:
                self._feed(PlacementObserved(placement))
        for uid, placement in counted.items():
            if uid not in wanted:
                self._feed(RequestRemoved(placement.key))

    def _placements(self, lease: Lease) -> dict[str, Placement]:
        if ref := deviceleases.obstructed(lease):
            return {"": Holder("").placement(ref, exclusive=True)}
        ref = deviceleases.device_ref(lease)
        if ref is None:
            return {}
        exclusive = not deviceleases.is_shared(lease)
        return {
            holder.uid: holder.placement(ref, exclusive=exclusive)
            for holder in deviceleases.holders(lease)
            if not self._counts_itself(holder.uid, ref)
        }

    def _counts_itself(self, uid: str, ref: DeviceRef) -> bool:
        placement = self._placement_of(uid)
        return placement is not None and placement.node == ref.node and ref.device in placement.devices


def _holders(lease: Lease | None) -> set[str]:
    """Return the UIDs of the device's holders; empty if the Lease is not for a device."""
    if lease is None or not deviceleases.is_device(lease):
        return set()
    return {each.uid for each in deviceleases.holders(lease)}
