"""Which leases there are, by device and by pod, and what of them counts as taken.

A lease counts by itself unless its holder counts it: the pod that we are binding, by the engine's assumption;
the bound pod, by its own placement. So a device is accounted to exactly one of them at any moment, and stays
taken when an ended pod leaves its lease behind. A Lease that is no device's and has the name of one takes the
device, too: nobody could hold it.
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
    """`placement_of` gives what a pod counts by itself, by its UID; `shown` is the live copy of leases."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        placement_of: Callable[[str], Placement | None],
        shown: Store[Lease],
    ) -> None:
        self._feed, self._placement_of, self._shown = feed, placement_of, shown
        self._met: dict[str, Lease] = {}
        self._told: dict[str, dict[str, Placement]] = {}
        self._of: dict[str, dict[str, Lease]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def of(self, uid: str) -> list[Lease]:
        """The device leases that name this pod."""
        return list(self._of.get(uid, {}).values())

    def see(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None:
            return
        name, before, after = lease.metadata.name, _holders(old), _holders(new)
        for uid in before - after:
            self._drop(uid, name)
        for uid in after:
            self._of.setdefault(uid, {})[name] = lease
        self._count(name, new)

    def found(self, lease: Lease) -> None:
        """Somebody met this lease before the watch showed it."""
        self._met[lease.metadata.name] = lease
        self._count(lease.metadata.name, lease)

    def forget_met(self) -> None:
        """What was met may have gone before the watch could show it, and then nothing would ever be heard of
        it. Whoever meets it again says so."""
        met, self._met = self._met, {}
        for name, lease in met.items():
            self._count(name, self._shown.get(key(lease)))

    def recount(self, uid: str) -> None:
        """The pod counts other devices than before: so do its leases."""
        for name, lease in list(self._of.get(uid, {}).items()):
            self._count(name, lease)

    def _drop(self, uid: str, name: str) -> None:
        mine = self._of.get(uid, {})
        mine.pop(name, None)
        if not mine:
            self._of.pop(uid, None)

    def _count(self, name: str, lease: Lease | None) -> None:
        wanted = self._wanted(lease) if lease else {}
        told = self._told.pop(name, {})
        if wanted:
            self._told[name] = wanted
        for uid, placement in wanted.items():
            if told.get(uid) != placement:
                self._feed(PlacementObserved(placement))
        for uid, placement in told.items():
            if uid not in wanted:
                self._feed(RequestRemoved(placement.key))

    def _wanted(self, lease: Lease) -> dict[str, Placement]:
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
    """UIDs of those who hold the device, if it is a device's Lease."""
    if lease is None or not deviceleases.is_device(lease):
        return set()
    return {each.uid for each in deviceleases.holders(lease)}
