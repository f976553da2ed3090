"""Which pods the kubelet gave devices to, by UID: until it says so no more and no process of the pod is left.

    listed by the kubelet ──listed no more, or the kubelet is silent──► kept ──no process of the pod──► free

The kubelet names pods, not UIDs, and forgets a pod at once when it is deleted by force, while its containers
have their whole grace period to end. An agent that starts again goes on from its last report.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable

import structlog

from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices, PodResources
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus
from gpu_orchestrator.apps.agent import usage
from gpu_orchestrator.apps.agent.survey import Look
from gpu_orchestrator.apps.agent.usage import Name, Users

KEEP_S = 60.0
"""How long the kubelet's last answer counts while it does not answer."""

log = structlog.get_logger()


class Given:
    """`uid_of` returns the UID of a pod by namespace and name, None if there is none; `is_known` tells
    whether there is a pod with this UID. `living` returns the UIDs of all pods that have processes here."""

    def __init__(
        self,
        kubelet: PodResources,
        *,
        uid_of: Callable[[str, str], str | None],
        is_known: Callable[[str], bool],
        living: Callable[[], Awaitable[Collection[str]]],
        clock: Callable[[], float],
    ) -> None:
        self._kubelet, self._uid_of, self._is_known = kubelet, uid_of, is_known
        self._living, self._clock = living, clock
        self._uids: dict[Name, str] = {}
        self._listed: Users = {}
        self._answered_at = clock()
        self._held: Users = {}
        self.unplaced: frozenset[str] = frozenset()
        """Pods that got devices under names that are not known here, by UID."""

    def recall(self, report: GpuNodeStatusStatus | None) -> None:
        """Start from the last report. Of users that are still there, the kubelet or a process will tell."""
        devices = report.devices if report else ()
        gone = {
            each.uuid: frozenset(uid for uid in each.in_use_by if not self._is_known(uid)) for each in devices
        }
        self._held = {uuid: uids for uuid, uids in gone.items() if uuid and uids}

    async def users(self, look: Look, on_device: Users) -> Users:
        """Ask the kubelet, and return what is held. `on_device` are the pods whose processes were seen."""
        answer, now = await self._kubelet.list(), self._clock()
        if answer is not None:
            self._listed, self._answered_at = self._resolved(look, answer, on_device), now
        elif now - self._answered_at >= KEEP_S:
            self._listed = {}
        self._held = usage.joined(self._listed, await self._kept())
        return self._held

    def _resolved(self, look: Look, answer: Collection[GivenDevices], on_device: Users) -> Users:
        """Return who was given what. A pod that was deleted has the UID that it had; one that was never
        there has that of an unknown user of the device, else its name in place of one."""
        given, unplaced = usage.of_kubelet(look, answer), usage.unplaced(look, answer)
        pods = {pod for found in given.values() for pod in found} | unplaced
        self._uids = {pod: uid for pod in pods if (uid := self._uid_of(*pod) or self._uids.get(pod))}
        self._note(frozenset(self._uids[pod] for pod in unplaced if pod in self._uids))
        candidates = usage.joined(on_device, self._held)
        return {uuid: self._users(found, candidates.get(uuid, frozenset())) for uuid, found in given.items()}

    def _note(self, unplaced: frozenset[str]) -> None:
        if unplaced - self.unplaced:
            log.warning("kubelet gave devices under names that are not known here", pod_uids=sorted(unplaced))
        self.unplaced = unplaced

    def _users(self, pods: Iterable[Name], candidates: frozenset[str]) -> frozenset[str]:
        unknown = frozenset(uid for uid in candidates if not self._is_known(uid))
        found: set[str] = set()
        for pod in pods:
            if uid := self._uids.get(pod):
                found.add(uid)
            else:
                found |= unknown or {usage.nameless(pod)}
        return frozenset(found)

    async def _kept(self) -> Users:
        """Return those that are listed no more and have processes. Processes are looked through only if there
        may be some."""
        left = {uuid: uids - self._listed.get(uuid, frozenset()) for uuid, uids in self._held.items()}
        if not any(left.values()):
            return {}
        living = await self._living()
        return {uuid: kept for uuid, uids in left.items() if (kept := uids.intersection(living))}

    def close(self) -> None:
        self._kubelet.close()
