"""Watch the leases of this node's devices, each by its name: no agent watches those of the whole cluster.

The API server hands a change of one Lease to those alone that watch that name.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api import deviceleases, names
from gpu_orchestrator.api.deviceleases import Hold
from gpu_orchestrator.api.kubernetes import LEASES, Lease

TURN_S = (240.0, 360.0)


class DeviceLeases:
    """`changed` is called when a Lease changes."""

    def __init__(self, client: Client, node: str, namespace: str, changed: Callable[[], None]) -> None:
        self._client, self._node, self._namespace, self._changed = client, node, namespace, changed
        self._uuids: Mapping[int, str] = {}
        self._watches: dict[int, tuple[Watch[Lease], asyncio.Task[None]]] = {}

    @property
    def are_known(self) -> bool:
        """True if the leases of all devices have been read."""
        return bool(self._uuids) and all(watch.is_synced for watch, _ in self._watches.values())

    def follow(self, uuids: Mapping[int, str], group: asyncio.TaskGroup) -> None:
        """Watch the leases of these devices, by id, and of no other."""
        for device in self._watches.keys() - uuids.keys():
            self._watches.pop(device)[1].cancel()
        for device in uuids.keys() - self._watches.keys():
            name = names.device_lease(self._node, device)
            watch = Watch(
                self._client,
                LEASES,
                namespace=self._namespace,
                fields=f"metadata.name={name}",
                turn_s=TURN_S,
            )
            watch.on_change(self._on_change)
            self._watches[device] = watch, group.create_task(self._run(watch))
        self._uuids = dict(uuids)

    async def _run(self, watch: Watch[Lease]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            await watch.synced()
            self._changed()  # also if there is no Lease: now that is known

    def _on_change(self, old: Any, new: Any) -> None:
        self._changed()

    def holds(self) -> list[Hold]:
        """Return who holds what of the devices. A Lease that names another UUID is for a device that was in
        this place before."""
        leases = [lease for watch, _ in self._watches.values() for lease in watch.store]
        return [
            hold
            for lease in leases
            for hold in deviceleases.holds(lease)
            if hold.ref.node == self._node and self._uuids.get(hold.ref.device) == hold.ref.uuid
        ]
