"""Writing to the status of unbound pods, and knowing the version that our own writes left them at.

Every bind names the version of the pod it was decided for, so whoever takes a reservation away from an
unbound pod touches it first, and no bind decided before can land after. Our own words about a waiting pod
move its version as well, a little before the watch shows it; `latest` keeps them from refusing our own bind.
"""

import asyncio
from datetime import UTC, datetime

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json

SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
UNRESERVED = "SchedulerError"


class PodStatusWriter:
    """`written` remembers our writes until the watch of pods shows them."""

    def __init__(self, client: Client, written: Overlay[Pod]) -> None:
        self._client, self._written = client, written
        self._writing: dict[str, asyncio.Task[Pod]] = {}

    async def touch(self, pod: Pod, why: str) -> Pod:
        """Move the pod's version. Raises Conflict if it is not as we know it, as when it was bound."""
        body = condition(UNRESERVED, why)
        # The moment makes every touch another write: one that changes nothing would not move the version.
        body["status"]["conditions"][0]["lastProbeTime"] = _now()
        return await self.write(pod, body)

    async def write(self, pod: Pod, body: Json) -> Pod:
        """Change the status of the pod we know; raises Conflict if it is another by now. Guarded, or a word
        about waiting could land on a pod that was bound a moment ago."""
        meta = pod.metadata
        guarded = {**body, "metadata": {"resourceVersion": meta.resource_version}}
        sent = self._client.patch(
            PODS, meta.name, guarded, meta.namespace, kind=Patch.STRATEGIC, subresource="status"
        )
        writing = self._writing[meta.uid] = asyncio.ensure_future(sent)
        try:
            written = await writing
        finally:
            if self._writing.get(meta.uid) is writing:
                del self._writing[meta.uid]
        self._written.keep(written)
        return written

    async def latest(self, pod: Pod) -> Pod:
        """The pod as the last of our writes leaves it, if the watch has not shown that yet."""
        if writing := self._writing.get(pod.metadata.uid):
            await asyncio.wait({writing})
        return self._written.newest(pod)


def condition(reason: str, message: str) -> Json:
    """PodScheduled=False, which kubectl shows and cluster autoscalers act upon."""
    told = {
        "type": SCHEDULED,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _now(),
    }
    return {"status": {"conditions": [told]}}


def _now() -> str:
    return timestamps.seconds(datetime.now(UTC))
