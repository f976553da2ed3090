"""Free the devices of an ended pod when none of its processes is left on them.

    no live agent on the node               `wait_s` after the end
    agent reports the pod on a device       when it does not any more, and by the rules below
    kubelet says that all containers ended  at once
    anything else: deleted, maybe by force  `agent_s` after the end, and a look from after it is reported

An agent looks at intervals. A process that has just opened a device is in no report yet, also if an earlier
process of the pod was in one. So a report without the pod is news only if the look that it tells of began
after the *end* of the pod: the agent's Lease says when that was. A driver may hang, and a report be refused,
for as long as they like. A new leader, which knows nothing of the past, comes to no other answer.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Permanent
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.api import inventory, names, translate
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import PODS, Lease
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, holds_of

WORKERS = 16
POLL_S = 5.0
# How long the end of a pod, and the agent's news, may be on their way to us.
LAG_S = 1.0
RETRY_S = 1.0
# A rest from rounding may be less than the clock can measure; the check would repeat without end.
SHORTEST_S = 0.01

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EndedPod:
    """`node` is empty if the pod was never bound; `key` is its namespace and name."""

    uid: str
    node: str
    key: str
    at: float


class Releaser:
    """`leases_of` returns a pod's leases; `has_stopped` asks whether the kubelet says that all containers of
    an ended pod have ended; `freed` is called when the devices of an ended pod are free. `agent_s` is how
    old the news of a live agent may be."""

    def __init__(
        self,
        leases: DeviceLeases | None,
        node_statuses: Store[GpuNodeStatus],
        agents: AgentLiveness,
        *,
        leases_of: Callable[[str], list[Lease]],
        has_stopped: Callable[[EndedPod], Awaitable[bool]],
        freed: Callable[[str], None],
        clock: Callable[[], float],
        wait_s: float,
        agent_s: float,
    ) -> None:
        self._leases, self._node_statuses, self._agent_liveness = leases, node_statuses, agents
        self._leases_of, self._has_stopped, self._freed = leases_of, has_stopped, freed
        self._clock, self._wait_s, self._agent_s = clock, wait_s, agent_s
        self._ended: dict[str, EndedPod] = {}
        self._stopped: dict[str, bool] = {}
        self.queue: WorkQueue[str] = WorkQueue()

    def __contains__(self, uid: str) -> bool:
        return uid in self._ended

    def ended_since(self, moment: float) -> list[EndedPod]:
        """Return the pods that ended not before this, and whose devices are not free yet."""
        return [each for each in self._ended.values() if each.node and each.at >= moment]

    def add(self, uid: str, node: str, key: str) -> None:
        """Queue an ended pod for release."""
        if uid not in self._ended:
            self._ended[uid] = EndedPod(uid, node, key, self._clock())
            self.queue.add(uid)

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.on_agent(report.spec.node_name)

    def on_agent(self, node: str) -> None:
        """Look again at the ended pods of a node: its agent has said something."""
        for ended in list(self._ended.values()):
            if ended.node == node:
                self.queue.add(ended.uid)

    async def run(self) -> None:
        await self.queue.run(self._check, workers=WORKERS)

    async def _check(self, uid: str) -> None:
        ended = self._ended.get(uid)
        if ended is None:
            return
        if self._is_unconfirmed(ended):
            self._stopped[uid] = await self._has_stopped(ended)
        remaining_s = self.remaining_s(ended)
        if remaining_s > 0:
            self.queue.add_after(uid, max(remaining_s, SHORTEST_S))
            return
        if not await self._release(uid):
            self.queue.add_after(uid, RETRY_S)
            return
        self._ended.pop(uid, None)
        self._stopped.pop(uid, None)
        self._freed(uid)
        log.info("devices released", uid=uid, node=ended.node)

    def _is_unconfirmed(self, ended: EndedPod) -> bool:
        """Return True if the kubelet's word, which nobody has asked for yet, would free the devices now."""
        is_waiting = self._is_reported(ended.node) and not self._is_used(ended)
        return is_waiting and ended.uid not in self._stopped and self.remaining_s(ended) > 0

    def remaining_s(self, ended: EndedPod) -> float:
        """Return how long to wait before the next check; 0 if the pod's devices are free."""
        if not ended.node:
            return 0.0
        waited_s = self._clock() - ended.at
        if not self._is_reported(ended.node):
            return max(0.0, self._wait_s - waited_s)
        if self._is_used(ended):
            return POLL_S
        if self._stopped.get(ended.uid):
            return 0.0
        if self._agent_liveness.has_looked_since(ended.node, ended.at + LAG_S):
            return max(0.0, self._agent_s - waited_s)
        return max(POLL_S, self._agent_s - waited_s)

    def _is_reported(self, node: str) -> bool:
        """Return True if a live agent reports the node."""
        return node in self._node_statuses and self._agent_liveness.is_live(node)

    def _is_used(self, ended: EndedPod) -> bool:
        return ended.uid in inventory.used_by(self._node_statuses.get(ended.node))

    async def _release(self, uid: str) -> bool:
        """Release the pod's leases. Return False if one was written to since we saw it: the watch will show
        its new version."""
        if self._leases is None:
            return True
        held = holds_of(uid, self._leases_of(uid))
        return all([await self._leases.release(hold) for hold in held])


async def has_stopped(client: Client, ended: EndedPod) -> bool:
    """Return True if the pod still exists and is in a phase that a kubelet sets only when all containers of
    the pod have ended. One that is gone may have been deleted by force."""
    namespace, _, name = ended.key.partition("/")
    if not names.is_object_name(name) or not names.is_object_name(namespace):
        return False
    try:
        pod = await client.get(PODS, name, namespace)
    except Permanent:  # gone, or not ours to read: then it waits as one that is gone
        return False
    return pod.metadata.uid == ended.uid and pod.status.phase in translate.TERMINAL
