"""Which pods use each volume, so that one that only one pod may use (ReadWriteOncePod) serves one.

A pod uses its volumes from our decision, or from another scheduler's bind, until it has ended. Thousands may
wait for the same volume: a look at one of them must not look at the others.
"""

from gpu_orchestrator.api import volumes
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.informers import Stores


class VolumeUsers:
    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._users: dict[str, dict[str, str]] = {}

    def add(self, pod: Pod) -> list[str]:
        """Count the pod as a user of its volumes. Return the claims for one pod that nobody used before."""
        new = []
        for key in volumes.claims_of(pod):
            users = self._users.setdefault(key, {})
            if not users:
                new.append(key)
            users[pod.metadata.uid] = pod.metadata.name
        return self._for_one_pod(new)

    def remove(self, pod: Pod) -> list[str]:
        """Stop counting the pod. Return the claims for one pod that others were told it uses."""
        return self._for_one_pod([key for key in volumes.claims_of(pod) if self._forget(key, pod)])

    def conflict(self, pod: Pod) -> str:
        """Return why the pod must wait for another one that uses its volume; empty if there is none."""
        for key in self._for_one_pod(volumes.claims_of(pod)):
            users = self._users.get(key, {})
            if other := next((name for uid, name in users.items() if uid != pod.metadata.uid), ""):
                return (
                    f"PersistentVolumeClaim {key} is ReadWriteOncePod and serves another pod ({other}); "
                    "it is free when that pod has ended"
                )
        return ""

    def _forget(self, key: str, pod: Pod) -> bool:
        """Return True if the pod was the first user of this claim, which is the one that others are told."""
        users, uid = self._users.get(key, {}), pod.metadata.uid
        if uid not in users:
            return False
        was_first = next(iter(users)) == uid
        del users[uid]
        if not users:
            del self._users[key]
        return was_first

    def _for_one_pod(self, keys: list[str]) -> list[str]:
        found = ((key, self._stores.volume_claim(key)) for key in keys)
        return [key for key, claim in found if claim is not None and volumes.serves_one_pod(claim)]
