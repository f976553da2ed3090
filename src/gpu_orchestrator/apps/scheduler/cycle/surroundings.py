"""What other pods mean for a pod of ours: anti-affinity in use, and volumes that only one pod may use.

The coordinator reports pods that come, change and go, and asks before it queues a pod. `recheck` is called
with pods whose request has changed by that.
"""

from collections.abc import Callable, Iterable, Iterator

from gpu_orchestrator.api import neighbours
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.cycle.anti_affinity import MOST_REACHING, MOST_TERMS, AntiAffinity
from gpu_orchestrator.apps.scheduler.cycle.pod_request import NO_OTHERS, Others
from gpu_orchestrator.apps.scheduler.cycle.volume_users import VolumeUsers
from gpu_orchestrator.apps.scheduler.informers import SELECTS_NAMESPACES, Stores
from gpu_orchestrator.core.pod_rules import Neighbour, PodTerm


class Surroundings:
    """`is_placed` returns True if a pod, by its UID, is bound or being bound. `counts_waiting`: the
    anti-affinity of pods that wait counts, too. `is_open`: all pods are known."""

    def __init__(
        self,
        stores: Stores,
        our_pods: dict[str, Pod],
        recheck: Callable[[Iterable[Pod]], None],
        is_placed: Callable[[str], bool],
    ) -> None:
        self._stores, self._our_pods, self._recheck, self._is_placed = stores, our_pods, recheck, is_placed
        self._anti_affinity, self._volume_users = AntiAffinity(), VolumeUsers(stores)
        self._lacking_room: dict[str, dict[str, Pod]] = {}
        self.counts_waiting = self.is_open = False

    def opening(self, check: Callable[[Pod], None]) -> Iterator[None]:
        """Check the pods that wait, step by step: until now, not all that keep them away were known. The
        anti-affinity of those that are bound comes first, then that of those that wait."""
        self.counts_waiting = True
        yield from self._each_unbound(_keeps_others_away, check)
        self.is_open = True
        if self._anti_affinity:
            yield from self._each_unbound(lambda pod: bool(self.shunned_by(pod)), check)

    def _each_unbound(self, which: Callable[[Pod], bool], check: Callable[[Pod], None]) -> Iterator[None]:
        for uid in list(self._our_pods):
            pod = self._our_pods.get(uid)
            if pod is not None and not pod.spec.node_name and which(pod):
                check(pod)
            yield

    def others(self, pod: Pod, claim_user: Pod | None) -> Others:
        """Return what other pods mean for this one."""
        conflict, shunned_by = self.volume_conflict(pod), self.shunned_by(pod)
        if _keeps_others_away(pod):
            conflict = self._without_room(pod) or conflict
        if claim_user is None and not conflict and not shunned_by:
            return NO_OTHERS
        return Others(claim_user, conflict, shunned_by)

    def shunned_by(self, pod: Pod) -> tuple[PodTerm, ...]:
        """Return the anti-affinity that keeps the pod away: that in use, and its own where it matches itself.
        Other pods may have the same."""
        if not self._anti_affinity and not _keeps_others_away(pod):
            return ()
        seen = self.neighbour(pod)
        return self._anti_affinity.against(seen, seen.avoids)

    def _without_room(self, pod: Pod) -> str:
        """Return why the pod's anti-affinity is too much beside that of its namespace; empty if it is not. If
        so, keep the pod for when there is room."""
        self._forget_without_room(pod)
        namespace = pod.metadata.namespace
        match self._anti_affinity.lack(self.neighbour(pod)):
            case "":
                return ""
            case "reaching":
                why = (
                    f"the pods of namespace {namespace} have more than {MOST_REACHING} different "
                    "anti-affinity terms that reach other namespaces; leave out namespaces and "
                    "namespaceSelector, or use the same terms"
                )
            case "near":
                why = (
                    f"the pods of namespace {namespace} have more than {MOST_TERMS} different "
                    "anti-affinity terms on the same pods; use the same terms, or select fewer pods"
                )
        self._lacking_room.setdefault(namespace, {})[pod.metadata.uid] = pod
        return why

    def volume_conflict(self, pod: Pod) -> str:
        """Return why the pod must wait for another that uses its volume; empty if there is none."""
        return self._volume_users.conflict(pod) if pod.spec.volumes else ""

    def use_volumes(self, pod: Pod) -> list[str]:
        """Count the pod as a user of its volumes: it is bound or being bound. Return the claims whose users
        are to be checked: it is the first that has the volume, which serves one pod only."""
        return self._volume_users.add(pod) if pod.spec.volumes else []

    def leave_volumes(self, pod: Pod) -> list[str]:
        """Stop counting the pod, which has ended or could not be bound. Return the claims whose users are to
        be checked: they were waiting for this pod."""
        return self._volume_users.remove(pod) if pod.spec.volumes else []

    def check_users(self, claims: Iterable[str]) -> None:
        """Recheck the pods that want the volumes of these claims."""
        for key in claims:
            self._recheck(self._stores.pods.by("volume", key))

    def observe(self, pod: Pod) -> list[Pod]:
        """Take in the anti-affinity of a pod that is bound or about to be queued. Return the pods that wait
        and that it keeps away by terms not in use before: their requests do not have these terms yet."""
        if not _keeps_others_away(pod) and not self._anti_affinity:
            return []
        namespace, terms = pod.metadata.namespace, self.neighbour(pod).avoids
        departures = self._anti_affinity.departures
        new = self._anti_affinity.declare(pod.metadata.uid, namespace, terms)
        self._keep_lacking(pod)
        kept_away = self._waiting_pods(new) if new and self.is_open else []
        self._use_room(namespace, departures)
        return [each for each in kept_away if each.metadata.uid != pod.metadata.uid]

    def _waiting_pods(self, terms: list[PodTerm]) -> list[Pod]:
        """Return the pods that wait and whose requests lack one of these terms: it matches, and counts."""
        seen = (
            (each, Neighbour(each.metadata.namespace, each.metadata.labels)) for each in self._near(terms)
        )
        found = [each for each, labels in seen if any(term.pods.matches(labels) for term in terms)]
        found = [each for each in found if not self._is_placed(each.metadata.uid)]
        if len(self._anti_affinity) <= MOST_TERMS:
            return found
        return [each for each in found if not set(terms).isdisjoint(self.shunned_by(each))]

    def _near(self, terms: list[PodTerm]) -> Iterable[Pod]:
        """Return our pods that wait in the namespaces of these terms."""
        chosen = [term.pods.namespaces for term in terms]
        if None in chosen:
            return (each for each in self._our_pods.values() if not each.spec.node_name)
        names = dict.fromkeys(name for some in chosen for name in sorted(some or ()))
        pods = (each for name in names for each in self._stores.pods.by("waiting", name))
        return (each for each in pods if each.metadata.uid in self._our_pods)

    def ended(self, pod: Pod) -> None:
        self._forget_without_room(pod)
        self.withdraw(pod)
        self.check_users(self.leave_volumes(pod))

    def withdraw(self, pod: Pod) -> None:
        """Forget the anti-affinity of a pod that has ended, or that is not to be scheduled as it is."""
        if _keeps_others_away(pod) or self._anti_affinity:
            namespace = pod.metadata.namespace
            departures = self._anti_affinity.departures
            self._anti_affinity.withdraw(pod.metadata.uid, namespace)
            self._use_room(namespace, departures)

    def _use_room(self, namespace: str, departures: int) -> None:
        """Take in the anti-affinity for which there was no room, if terms have left since then."""
        if self._anti_affinity.departures == departures:
            return
        for uid, pod in list(self._lacking_room.get(namespace, {}).items()):
            seen = self.neighbour(pod)
            if pod.spec.node_name and self._anti_affinity.can_take(seen):
                self._recheck(self.observe(pod))
            elif not pod.spec.node_name and not self._anti_affinity.lack(seen):
                self._recheck([self._our_pods.get(uid, pod)])

    def _keep_lacking(self, pod: Pod) -> None:
        """Keep a bound pod for when there is room, if not all of its terms are in use."""
        self._forget_without_room(pod)
        if pod.spec.node_name and self._anti_affinity.lacks_any(self.neighbour(pod)):
            self._lacking_room.setdefault(pod.metadata.namespace, {})[pod.metadata.uid] = pod

    def _forget_without_room(self, pod: Pod) -> None:
        if (lacking := self._lacking_room.get(pod.metadata.namespace)) is not None:
            lacking.pop(pod.metadata.uid, None)
            if not lacking:
                del self._lacking_room[pod.metadata.namespace]

    def selecting_namespaces(self) -> list[Pod]:
        """Return the pods whose rules select namespaces by label."""
        return list(self._stores.pods.by("rule", SELECTS_NAMESPACES))

    def neighbour(self, pod: Pod) -> Neighbour:
        """Return what the rules of other pods see of this one now."""
        return neighbours.neighbour(pod, self._stores)


def _keeps_others_away(pod: Pod) -> bool:
    return bool(pod.spec.affinity.pod_anti_affinity.required)
