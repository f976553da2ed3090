"""Device leases by device and by pod, and which of them count as taken.

A lease counts by itself unless its holder already counts the device: a pod being bound by the engine's
assumption, a pod that we have bound by its own placement. So each device is counted exactly once at any
moment, with the terms that its lease states, and stays taken when an ended pod leaves its lease behind. If
the lease of a live bound pod disappears, it stays counted as lost until it is restored or the pod's devices
are free. An unrelated Lease with a device lease's name also takes the device: it could not be leased.
"""

from collections.abc import Callable, Iterable

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import Hold, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved


class LeaseIndex:
    """`placement_of` returns what a pod already counts, by its UID; `store` is that of the lease watch.
    `keeps` is called with a hold that disappeared and all that its holder had, and returns True if the holder
    is a live pod that has the device all the same. `changed` is called with the holder and
    the node of every lease that came, changed or went. `queue_of` returns the queue in which a pod counts."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        placement_of: Callable[[str], Placement | None],
        store: Store[Lease],
        *,
        keeps: Callable[[Hold, list[Hold]], bool],
        changed: Callable[[str, str], None],
        queue_of: Callable[[str], str] = lambda uid: "",
    ) -> None:
        self._feed, self._placement_of, self._store = feed, placement_of, store
        self._keeps, self._changed, self._queue_of = keeps, changed, queue_of
        self._found: dict[str, Lease] = {}
        self._counted: dict[str, dict[str, tuple[Placement, str]]] = {}
        """What counts by lease and holder, each with its queue."""
        self._recorded: dict[str, str] = {}
        """The queues that leases name, by holder."""
        self._by_pod: dict[str, dict[str, Lease]] = {}
        self._lost: dict[str, dict[str, Hold]] = {}
        self._lost_by: dict[str, dict[str, Hold]] = {}
        """The same by pod and lease: all leases may be lost at once."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_pod or uid in self._lost_by

    def of(self, uid: str) -> list[Lease]:
        """Return the device leases that name this pod."""
        return list(self._by_pod.get(uid, {}).values())

    def lost(self, uid: str) -> list[Hold]:
        """Return what the live pod holds although its lease has disappeared."""
        return list(self._lost_by.get(uid, {}).values())

    def holds(self, uid: str) -> list[Hold]:
        """Return what the pod holds by its leases, the lost ones included."""
        named = [hold for lease in self.of(uid) for hold in deviceleases.holds(lease)]
        return [*(hold for hold in named if hold.holder.uid == uid), *self.lost(uid)]

    def devices(self, uid: str, node: str) -> set[int]:
        """Return the devices of a node that the pod holds by its leases."""
        if uid not in self:
            return set()
        return {hold.ref.device for hold in self.holds(uid) if hold.ref.node == node}

    def recorded(self, uid: str) -> str:
        """Return the queue that the pod was bound in, as its leases say; empty if they name none."""
        return self._recorded.get(uid, "")

    def requeue(self, uid: str) -> None:
        """Count the pod's leases in another queue, if it belongs to another now."""
        queue = self._queue_of(uid)
        for at in {**self._by_pod.get(uid, {}), **self._lost_by.get(uid, {})}:
            placement, before = self._counted.get(at, {}).get(uid, (None, queue))
            if placement is not None and before != queue:
                self._counted[at][uid] = placement, queue
                self._feed(PlacementObserved(placement, queue=queue))

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None:
            return
        at, before, after = key(lease), _by_holder(old), _by_holder(new)
        for uid, hold in before.items():
            if uid not in after:
                self._drop(hold, at)
        for uid, hold in after.items():
            self._by_pod.setdefault(uid, {})[at] = lease
            if hold.holder.queue:
                self._recorded[uid] = hold.holder.queue
            if self._lost:
                self._found_again(uid, at)
        self._count(at, self._placements(new, after.values()))
        for uid, hold in (before | after if before else after).items():
            self._changed(uid, hold.ref.node)

    def add_found(self, lease: Lease) -> None:
        """Count a lease that a failed job found or left, maybe before the watch shows it."""
        self._found[key(lease)] = lease
        self._update(key(lease), lease)

    def forget_found(self) -> None:
        """Forget leases that failed jobs found and the watch never showed: they may be deleted by now, and
        the watch would never report that. A later failed acquire adds them again."""
        found, self._found = self._found, {}
        for at in found:
            self._update(at, self._store.get(at))

    def forget_lost(self, uid: str) -> None:
        """Forget what an ended pod held by lost leases: its devices are free."""
        for at in list(self._lost_by.get(uid, ())):
            self._found_again(uid, at)
            self._update(at, self._store.get(at))
        self._forget_recorded(uid)

    def recount(self, uid: str) -> None:
        """Update the pod's leases after the devices that it counts itself have changed."""
        for at, lease in list(self._by_pod.get(uid, {}).items()):
            if not self._is_counted(uid, at):
                self._update(at, lease)

    def _is_counted(self, uid: str, at: str) -> bool:
        """Return True if a lease counts for the pod, and rightly so. To know that, the lease need not be read
        again: a new leader asks for every pod of the cluster."""
        counted = self._counted.get(at, {}).get(uid)
        return counted is not None and not self._counts_itself(uid, counted[0].node, counted[0].devices)

    def _drop(self, hold: Hold, at: str) -> None:
        uid = hold.holder.uid
        if self._keeps(hold, self.holds(uid)):
            self._lost.setdefault(at, {})[uid] = hold
            self._lost_by.setdefault(uid, {})[at] = hold
        mine = self._by_pod.get(uid, {})
        mine.pop(at, None)
        if not mine:
            self._by_pod.pop(uid, None)
            self._forget_recorded(uid)

    def _forget_recorded(self, uid: str) -> None:
        if uid not in self:
            self._recorded.pop(uid, None)

    def _found_again(self, uid: str, at: str) -> None:
        for lost, first, second in ((self._lost, at, uid), (self._lost_by, uid, at)):
            held = lost.get(first, {})
            if held.pop(second, None) and not held:
                del lost[first]

    def _update(self, at: str, lease: Lease | None) -> None:
        self._count(at, self._placements(lease, deviceleases.holds(lease) if lease is not None else ()))

    def _count(self, at: str, wanted: dict[str, Placement]) -> None:
        """Count a lease as these placements, by holder, and as what was lost of it."""
        for uid, hold in self._lost.get(at, {}).items():
            wanted.setdefault(uid, hold.placement)
        counted = self._counted.pop(at, {})
        if wanted:
            self._counted[at] = {uid: (each, self._queue_of(uid)) for uid, each in wanted.items()}
        for uid, (placement, queue) in self._counted.get(at, {}).items():
            if counted.get(uid) != (placement, queue):
                self._feed(PlacementObserved(placement, queue=queue))
        for uid, (placement, _) in counted.items():
            if uid not in wanted:
                self._feed(RequestRemoved(placement.key))

    def _placements(self, lease: Lease | None, held: Iterable[Hold]) -> dict[str, Placement]:
        """Return what counts of a lease by itself, by holder."""
        if lease is not None and (ref := deviceleases.obstructed(lease)):
            return {"": Holder("").placement(ref, exclusive=True)}
        return {
            hold.holder.uid: hold.placement
            for hold in held
            if not self._counts_itself(hold.holder.uid, hold.ref.node, (hold.ref.device,))
        }

    def _counts_itself(self, uid: str, node: str, devices: tuple[int, ...]) -> bool:
        """Return True if the pod counts one of these devices apart from its leases."""
        placement = self._placement_of(uid)
        if placement is None or not placement.devices or placement.node != node:
            return False
        return any(each in placement.devices for each in devices)


def _by_holder(lease: Lease | None) -> dict[str, Hold]:
    """Return the holds of a device by the UID of the holder; empty if the Lease is not for a device."""
    return {hold.holder.uid: hold for hold in deviceleases.holds(lease)} if lease is not None else {}
