"""Write the status of unbound pods, and know the version that our own writes left them at.

Every bind names the version of the pod it was decided for. So a scheduler that takes a reservation away from
an unbound pod first moves the pod's version: no bind decided earlier can succeed afterwards. A condition that
we write on a waiting pod also moves its version, before the watch shows it. `latest` returns that version, so
that our own write does not make our own bind fail.
"""

import asyncio
from datetime import UTC, datetime

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json, key

SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"


class PodStatusWriter:
    """`written` keeps our writes until the pod watch shows them."""

    def __init__(self, client: Client, written: Overlay[Pod]) -> None:
        self._client, self._written = client, written
        self._writing: dict[str, asyncio.Task[Pod]] = {}

    async def bump_version(self, pod: Pod, why: str) -> Pod:
        """Move the pod's version. Raise Conflict if the pod has changed since we read it, e.g. was bound."""
        body = condition(SCHEDULER_ERROR, why)
        # A new time makes every call a change: a patch that changes nothing would not move the version.
        body["status"]["conditions"][0]["lastProbeTime"] = _now()
        return await self.write(pod, body)

    async def write(self, pod: Pod, body: Json) -> Pod:
        """Patch the pod's status. Raise Conflict if the pod has changed since we read it: otherwise a reason
        to wait could be written to a pod that was bound a moment ago."""
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
        seen = self._written.get(key(pod))
        if seen is not None and seen.metadata.uid == meta.uid:  # else it is gone, and nothing would drop it
            self._written.keep(written)
        return written

    async def latest(self, pod: Pod) -> Pod:
        """Return the pod as our last write left it, if the watch has not shown that yet."""
        if writing := self._writing.get(pod.metadata.uid):
            await asyncio.wait({writing})
        return self._written.newest(pod)


def condition(reason: str, message: str) -> Json:
    """Return the condition PodScheduled=False, which kubectl shows and cluster autoscalers act upon."""
    scheduled = {
        "type": SCHEDULED,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": _now(),
    }
    return {"status": {"conditions": [scheduled]}}


def _now() -> str:
    return timestamps.seconds(datetime.now(UTC))
