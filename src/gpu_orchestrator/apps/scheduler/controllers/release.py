"""Free the devices of an ended pod when none of its processes is left on them.

With a live agent on the node that has reported the pod, that is when its report does not name the pod any
more. Every other pod waits `wait_s` after its end: the agent may not have seen it yet, or is not there. So a
pod deleted by force does not pass a busy GPU on to the next pod, however late it began to use it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, holds_of

WORKERS = 16
POLL_S = 5.0
RETRY_S = 1.0
# A rest from rounding may be less than the clock can measure; the check would repeat without end.
SHORTEST_S = 0.01

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EndedPod:
    """`node` is empty if the pod was never bound; `was_seen`: an agent has reported it on a device."""

    uid: str
    node: str
    at: float
    was_seen: bool = False


class Releaser:
    """`leases_of` returns a pod's leases, and `is_bound` whether a pod is bound and alive; `freed` is called
    when the devices of an ended pod are free."""

    def __init__(
        self,
        leases: DeviceLeases | None,
        node_statuses: Store[GpuNodeStatus],
        agents: AgentLiveness,
        *,
        leases_of: Callable[[str], list[Lease]],
        is_bound: Callable[[str], bool],
        freed: Callable[[str], None],
        clock: Callable[[], float],
        wait_s: float,
    ) -> None:
        self._leases, self._node_statuses, self._agent_liveness = leases, node_statuses, agents
        self._leases_of, self._is_bound, self._freed = leases_of, is_bound, freed
        self._clock, self._wait_s = clock, wait_s
        self._ended: dict[str, EndedPod] = {}
        self._seen: dict[str, set[str]] = {}
        self.queue: WorkQueue[str] = WorkQueue()

    def __contains__(self, uid: str) -> bool:
        return uid in self._ended

    def add(self, uid: str, node: str) -> None:
        """Queue an ended pod for release."""
        if uid not in self._ended:
            self._ended[uid] = EndedPod(uid, node, self._clock(), uid in self._seen.get(node, ()))
            self.queue.add(uid)

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        report = new or old
        if report is None:
            return
        node = report.spec.node_name
        self._remember_seen(node, new)
        for ended in list(self._ended.values()):
            if ended.node == node:
                self.queue.add(ended.uid)

    def _remember_seen(self, node: str, report: GpuNodeStatus | None) -> None:
        """Remember which pods the agent has reported, as long as they may be released."""
        used = inventory.used_by(report)
        before = {uid for uid in self._seen.pop(node, ()) if self._is_bound(uid) or uid in self._ended}
        if seen := before.union(used):
            self._seen[node] = seen

    async def run(self) -> None:
        await self.queue.run(self._check, workers=WORKERS)

    async def _check(self, uid: str) -> None:
        ended = self._ended.get(uid)
        if ended is None:
            return
        remaining_s = self.remaining_s(ended)
        if remaining_s > 0:
            self.queue.add_after(uid, max(remaining_s, SHORTEST_S))
            return
        if not await self._release(uid):
            self.queue.add_after(uid, RETRY_S)
            return
        self._ended.pop(uid, None)
        self._freed(uid)
        log.info("devices released", uid=uid, node=ended.node)

    def remaining_s(self, ended: EndedPod) -> float:
        """Return how long to wait before the next check; 0 if the pod's devices are free."""
        if not ended.node:
            return 0.0
        waited_s = self._clock() - ended.at
        patience_s = max(0.0, self._wait_s - waited_s)
        if ended.node not in self._node_statuses or not self._agent_liveness.is_live(ended.node):
            return patience_s
        if self._is_used(ended):
            return POLL_S
        return 0.0 if ended.was_seen or ended.uid in self._seen.get(ended.node, ()) else patience_s

    def _is_used(self, ended: EndedPod) -> bool:
        return ended.uid in inventory.used_by(self._node_statuses.get(ended.node))

    async def _release(self, uid: str) -> bool:
        """Release the pod's leases. Return False if one was written to since we saw it: the watch will show
        its new version."""
        if self._leases is None:
            return True
        held = holds_of(uid, self._leases_of(uid))
        return all([await self._leases.release(hold) for hold in held])
