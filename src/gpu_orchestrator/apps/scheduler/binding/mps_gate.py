"""Let a pod whose share MPS holds be bound only when its daemon listens.

A container that starts before its daemon uses the device directly, without a limit, and nothing would show
it. The agent starts the daemon when it sees the pod's leases, which the binder acquires before it comes here,
and lists the daemon in its report. Its daemons end with it: what a dead agent reported last opens nothing.
"""

import asyncio
from collections.abc import Callable

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus, NodeMps

WAIT_S = 30.0
REFUSED = (
    "the agent of {node} has no room for another MPS daemon: one serves the pods of a namespace with equal "
    "devices, memory and share; use fewer kinds of shares, or raise mpsDaemons in the agent's settings"
)


class MpsGate:
    """`node_statuses` are the agents' reports, and `on_node_status` is called when one changes; `is_live` is
    whether a node's agent is, and `on_agent` is called when it may be again."""

    def __init__(
        self,
        node_statuses: Store[GpuNodeStatus],
        is_live: Callable[[str], bool],
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._node_statuses, self._is_live, self._wait_s = node_statuses, is_live, wait_s
        self._changed: dict[str, asyncio.Event] = {}
        self._is_stopped = False

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.on_agent(report.spec.node_name)

    def on_agent(self, node: str) -> None:
        if changed := self._changed.pop(node, None):
            changed.set()

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._is_stopped = True
        for changed in self._changed.values():
            changed.set()

    async def wait(self, node: str, folder: str) -> str:
        """Wait until the daemon with this folder listens; return why it does not, or nothing."""
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._listens(node, folder):
                    if self._is_stopped:
                        return "this scheduler stops"
                    if self._is_refused(node, folder):
                        return REFUSED.format(node=node)
                    await self._changed.setdefault(node, asyncio.Event()).wait()
        except TimeoutError:
            if not self._is_live(node):
                return f"the agent of {node}, which keeps the MPS daemon {folder}, gives no sign of life"
            return f"the agent of {node} did not start the MPS daemon {folder} in {self._wait_s:.0f} s"
        return ""

    def _listens(self, node: str, folder: str) -> bool:
        mps = self._reported(node)
        return mps is not None and folder in mps.folders

    def _is_refused(self, node: str, folder: str) -> bool:
        mps = self._reported(node)
        return mps is not None and folder in mps.refused

    def _reported(self, node: str) -> NodeMps | None:
        report = self._node_statuses.get(node)
        return report.status.mps if report is not None and self._is_live(node) else None
