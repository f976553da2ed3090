"""Free the devices of an ended pod when none of its processes is left on them.

With a live agent on the node, that is when the agent's report does not name the pod any more. A short-lived
pod, which the agent may not have seen yet, and every pod on a node without an agent wait `wait_s` after their
end. So a pod deleted by force does not pass a busy GPU on to the next pod.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

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

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EndedPod:
    """`node` is empty for a pod that was never bound; `short_lived`: it was bound shortly before its end."""

    uid: str
    node: str
    at: float
    short_lived: bool = False


class Releaser:
    def __init__(
        self,
        leases: DeviceLeases | None,
        node_statuses: Store[GpuNodeStatus],
        agents: AgentLiveness,
        *,
        leases_of: Callable[[str], list[Lease]],
        freed: Callable[[str], None],
        clock: Callable[[], float],
        wait_s: float,
    ) -> None:
        self._leases, self._node_statuses, self._agent_liveness = leases, node_statuses, agents
        self._leases_of, self._freed = leases_of, freed
        self._clock, self._wait_s = clock, wait_s
        self._ended: dict[str, EndedPod] = {}
        self.queue: WorkQueue[str] = WorkQueue()

    def __contains__(self, uid: str) -> bool:
        return uid in self._ended

    def add(self, uid: str, node: str, *, short_lived: bool = False) -> None:
        """Queue an ended pod for release."""
        if uid not in self._ended:
            self._ended[uid] = EndedPod(uid, node, self._clock(), short_lived)
            self.queue.add(uid)

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        report = new or old
        for ended in list(self._ended.values()):
            if report is not None and ended.node == report.spec.node_name:
                self.queue.add(ended.uid)

    async def run(self) -> None:
        await self.queue.run(self._check, workers=WORKERS)

    async def _check(self, uid: str) -> None:
        ended = self._ended.get(uid)
        if ended is None:
            return
        if self._is_used(ended):
            self._ended[uid] = ended = replace(ended, short_lived=False)  # the agent has seen it
        remaining_s = self.remaining_s(ended)
        if remaining_s > 0:
            self.queue.add_after(uid, remaining_s)
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
        return patience_s if ended.short_lived else 0.0

    def _is_used(self, ended: EndedPod) -> bool:
        return ended.uid in inventory.used_by(self._node_statuses.get(ended.node))

    async def _release(self, uid: str) -> bool:
        """Release the pod's leases. Return False if one was written to since we saw it: the watch will show
        its new version."""
        if self._leases is None:
            return True
        held = holds_of(uid, self._leases_of(uid))
        return all([await self._leases.release(hold) for hold in held])
