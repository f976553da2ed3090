"""Keep new pods off the agent's node while a pod there uses a device that it was not given; off by default.

The taint is read and written in one compare-and-set, so that the taints of others stay as they are.
"""

from typing import Any

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api import names
from gpu_orchestrator.api.wire import Json, ObjectMeta, Resource, Wire
from gpu_orchestrator.apps.agent.metrics import Metrics

log = structlog.get_logger()


class TaintedSpec(Wire, frozen=True, gc=False):
    taints: list[dict[str, Any]] = []  # noqa: RUF012 - msgspec gives every object its own copy


class TaintedNode(Wire, frozen=True, gc=False):
    """A Node with its taints as they are on the wire, to be written back."""

    metadata: ObjectMeta
    spec: TaintedSpec = TaintedSpec()


TAINTED_NODES = Resource(TaintedNode, "Node", "nodes", namespaced=False)
TAINT = {"key": names.MISMATCH_TAINT, "effect": "NoSchedule"}


class Tainter:
    def __init__(self, client: Client, node: str, metrics: Metrics) -> None:
        self._client, self._node, self._metrics = client, node, metrics
        self._is_tainted: bool | None = None
        """As we left it; None: not known."""

    async def set(self, wanted: bool) -> None:
        """Make the node have the taint, or not. A failure is tried again at the next look."""
        if wanted == self._is_tainted:
            return
        try:
            node = await self._client.get(TAINTED_NODES, self._node)
            if (body := patch(node, wanted)) is not None:
                await self._client.patch(TAINTED_NODES, self._node, body, manager=names.AGENT)
                self._metrics.wrote("taint")
                log.warning("taint of node", node=self._node, key=names.MISMATCH_TAINT, is_set=wanted)
        except KubeError as error:
            self._metrics.error("taint")
            log.warning("taint of node not written", node=self._node, error=str(error))
            return
        self._is_tainted = wanted


def patch(node: TaintedNode, wanted: bool) -> Json | None:
    """Return the patch with which the node has our taint, or not; None if it is so already. Pure."""
    others = [each for each in node.spec.taints if each.get("key") != names.MISMATCH_TAINT]
    taints = [*others, TAINT] if wanted else others
    if taints == node.spec.taints or (not wanted and len(others) == len(node.spec.taints)):
        return None
    return {
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints or None},
    }
