"""Writing to the status of unbound pods, and knowing the version that our own writes left them at.

Every bind names the version of the pod it was decided for, so whoever takes a reservation away from an
unbound pod touches it first, and no bind decided before can land after. Our own words about a waiting pod
move its version as well, a little before the watch shows it; `latest` keeps them from refusing our own bind.
"""

import asyncio
from datetime import UTC, datetime

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json, key

SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
UNRESERVED = "SchedulerError"


class Touch:
    """`known` is the live copy of all pods."""

    def __init__(self, client: Client, known: Store[Pod]) -> None:
        self._client, self._known = client, known
        self._written: dict[str, Pod] = {}
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
        shown = self._known.get(key(pod))
        if shown is not None and shown.metadata.uid == meta.uid and _is_newer(written, shown):
            self._written[meta.uid] = written
        return written

    async def latest(self, pod: Pod) -> Pod:
        """The pod as the last of our writes leaves it, if the watch has not shown that yet."""
        if writing := self._writing.get(pod.metadata.uid):
            await asyncio.wait({writing})
        written = self._written.get(pod.metadata.uid)
        return written if written is not None and _is_newer(written, pod) else pod

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        """The watch has caught up, or the pod is gone."""
        pod = new or old
        written = self._written.get(pod.metadata.uid) if pod else None
        if written is not None and (new is None or not _is_newer(written, new)):
            del self._written[written.metadata.uid]


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


def _is_newer(one: Pod, other: Pod) -> bool:
    return int(one.metadata.resource_version) > int(other.metadata.resource_version)


def _now() -> str:
    return timestamps.seconds(datetime.now(UTC))
