"""What an ended pod held becomes free when no process of it is left on the device.

With a living agent on the node, that is when its report no longer names the pod. A pod so short that the
agent may not have seen it yet, and every pod of a node without an agent, waits `wait_s` after its end. So a
pod that was deleted by force does not hand a busy GPU to the next one.
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
AGAIN_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Leaving:
    """`node` is empty for a pod that was never bound; `short` for one that had just begun."""

    uid: str
    node: str
    at: float
    short: bool = False


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
        self._leaving: dict[str, Leaving] = {}
        self.queue: WorkQueue[str] = WorkQueue()

    def __contains__(self, uid: str) -> bool:
        return uid in self._leaving

    def add(self, uid: str, node: str, *, short: bool = False) -> None:
        """The pod has ended."""
        if uid not in self._leaving:
            self._leaving[uid] = Leaving(uid, node, self._clock(), short)
            self.queue.add(uid)

    def see_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        report = new or old
        for leaving in list(self._leaving.values()):
            if report is not None and leaving.node == report.spec.node_name:
                self.queue.add(leaving.uid)

    async def run(self) -> None:
        await self.queue.run(self._look, workers=WORKERS)

    async def _look(self, uid: str) -> None:
        leaving = self._leaving.get(uid)
        if leaving is None:
            return
        if self._is_used(leaving):
            self._leaving[uid] = leaving = replace(leaving, short=False)  # the agent has seen it
        remaining_s = self.remaining_s(leaving)
        if remaining_s > 0:
            self.queue.add_after(uid, remaining_s)
            return
        if not await self._release(uid):
            self.queue.add_after(uid, AGAIN_S)
            return
        self._leaving.pop(uid, None)
        self._freed(uid)
        log.info("devices released", uid=uid, node=leaving.node)

    def remaining_s(self, leaving: Leaving) -> float:
        """How long to wait before looking again; 0 when what it held is free."""
        if not leaving.node:
            return 0.0
        waited_s = self._clock() - leaving.at
        patience_s = max(0.0, self._wait_s - waited_s)
        if leaving.node not in self._node_statuses or not self._agent_liveness.is_live(leaving.node):
            return patience_s
        if self._is_used(leaving):
            return POLL_S
        return patience_s if leaving.short else 0.0

    def _is_used(self, leaving: Leaving) -> bool:
        return leaving.uid in inventory.used_by(self._node_statuses.get(leaving.node))

    async def _release(self, uid: str) -> bool:
        """False if somebody wrote to a lease since we saw it: the watch will show what it is now."""
        if self._leases is None:
            return True
        held = holds_of(uid, self._leases_of(uid))
        return all([await self._leases.release(hold) for hold in held])
