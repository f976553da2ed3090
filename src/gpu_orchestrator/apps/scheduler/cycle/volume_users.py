"""Which pod uses a volume that only one pod may use (ReadWriteOncePod).

A pod uses its volumes from our decision, or from another scheduler's bind, until it has ended.
"""

from collections.abc import Callable

from gpu_orchestrator.api import translate, volumes
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.informers import Stores


class VolumeUsers:
    """`is_placed` returns True if a pod, by its UID, is bound or being bound."""

    def __init__(self, stores: Stores, is_placed: Callable[[str], bool]) -> None:
        self._stores, self._is_placed = stores, is_placed

    def conflict(self, pod: Pod) -> str:
        """Return why the pod must wait for another one that uses its volume; empty if there is none."""
        for key in volumes.claims_of(pod):
            claim = self._stores.volume_claim(key)
            if claim is not None and volumes.serves_one_pod(claim) and (user := self._other(key, pod)):
                return (
                    f"PersistentVolumeClaim {key} is ReadWriteOncePod and serves another pod "
                    f"({user.metadata.name}); it is free when that pod has ended"
                )
        return ""

    def _other(self, key: str, pod: Pod) -> Pod | None:
        for each in self._stores.pods.by("volume", key):
            uid, has_ended = each.metadata.uid, each.status.phase in translate.TERMINAL
            is_placed = each.spec.node_name or self._is_placed(uid)
            if uid != pod.metadata.uid and is_placed and not has_ended:
                return each
        return None
