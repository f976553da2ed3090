"""What other pods mean for a pod of ours: anti-affinity in use, and volumes that only one pod may use.

The coordinator reports pods that come, change and go, and asks before it queues a pod. `recheck` is called
with pods whose request has changed by that.
"""

from collections.abc import Callable, Iterable

from gpu_orchestrator.api import neighbours, volumes
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.cycle.anti_affinity import MOST_TERMS, AntiAffinity
from gpu_orchestrator.apps.scheduler.cycle.pod_request import NO_OTHERS, Others
from gpu_orchestrator.apps.scheduler.cycle.volume_users import VolumeUsers
from gpu_orchestrator.apps.scheduler.informers import SELECTS_NAMESPACES, Stores
from gpu_orchestrator.core.pod_rules import Neighbour, PodTerm


class Surroundings:
    """`is_placed` returns True if a pod, by its UID, is bound or being bound."""

    def __init__(
        self,
        stores: Stores,
        our_pods: dict[str, Pod],
        recheck: Callable[[Iterable[Pod]], None],
        is_placed: Callable[[str], bool],
    ) -> None:
        self._stores, self._our_pods, self._recheck, self._is_placed = stores, our_pods, recheck, is_placed
        self._anti_affinity, self._volume_users = AntiAffinity(), VolumeUsers(stores, is_placed)
        self._crowded: dict[str, Pod] = {}
        self.is_open = False

    def open(self) -> None:
        """Recheck the pods that other pods keep away: until now, not all of these were known."""
        self.is_open = True
        if self._anti_affinity:
            self._recheck([pod for pod in self._our_pods.values() if self._shunned_by(pod)])

    def others(self, pod: Pod, claim_user: Pod | None) -> Others:
        """Return what other pods mean for this one."""
        conflict, shunned_by = self.volume_conflict(pod), self._shunned_by(pod)
        if self._crowded:
            self._crowded.pop(pod.metadata.uid, None)
        if len(shunned_by) > MOST_TERMS:
            self._crowded[pod.metadata.uid] = pod
            conflict = f"more than {MOST_TERMS} different anti-affinity rules of other pods match this pod"
        if claim_user is None and not conflict and not shunned_by:
            return NO_OTHERS
        return Others(claim_user, conflict, shunned_by)

    def volume_conflict(self, pod: Pod) -> str:
        """Return why the pod must wait for another that uses its volume; empty if there is none."""
        return self._volume_users.conflict(pod) if pod.spec.volumes else ""

    def observe(self, pod: Pod) -> list[Pod]:
        """Take in the anti-affinity of a pod that is ours or bound. Return the pods that wait and that it
        keeps away by terms not in use before: their requests do not have these terms yet."""
        if not pod.spec.affinity.pod_anti_affinity.required and not self._anti_affinity:
            return []
        new = self._anti_affinity.declare(pod.metadata.uid, self.neighbour(pod).avoids)
        if not new or not self.is_open:
            return []
        waiting = (each for each in self._our_pods.values() if not self._is_placed(each.metadata.uid))
        mine = [(each, self.neighbour(each)) for each in waiting if not each.spec.node_name]
        return [each for each, seen in mine if any(term.pods.matches(seen) for term in new)]

    def ended(self, pod: Pod) -> None:
        self._crowded.pop(pod.metadata.uid, None)
        if self._anti_affinity.withdraw(pod.metadata.uid):
            self._recheck(list(self._crowded.values()))
        self.volumes_changed(pod)

    def volumes_changed(self, pod: Pod) -> None:
        """Recheck the pods that want the same volume as this one, which was placed or has ended, if the
        volume serves one pod only."""
        if pod.spec.volumes:
            for key in volumes.claims_of(pod):
                claim = self._stores.volume_claim(key)
                if claim is None or not volumes.serves_one_pod(claim):
                    continue
                self._recheck(each for each in self._stores.pods.by("volume", key) if each is not pod)

    def selecting_namespaces(self) -> list[Pod]:
        """Return the pods whose rules select namespaces by label."""
        return list(self._stores.pods.by("rule", SELECTS_NAMESPACES))

    def _shunned_by(self, pod: Pod) -> tuple[PodTerm, ...]:
        return self._anti_affinity.against(self.neighbour(pod)) if self._anti_affinity else ()

    def neighbour(self, pod: Pod) -> Neighbour:
        """Return what the rules of other pods see of this one now."""
        return neighbours.neighbour(pod, self._stores)
