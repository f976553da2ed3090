"""Write the status of unbound pods, and know the version that our own writes left them at.

Every bind names the version of the pod it was decided for. So a scheduler that takes a reservation away from
an unbound pod first moves the pod's version: no bind decided earlier can succeed afterwards. A condition that
we write on a waiting pod also moves its version, before the watch shows it. `latest` returns that version, so
that our own write does not make our own bind fail.
"""

import asyncio
from datetime import UTC, datetime

from msgspec import structs

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json, key

SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"


class PodStatusWriter:
    """`shown` is the pod watch's live copy."""

    def __init__(self, client: Client, shown: Store[Pod]) -> None:
        self._client, self._shown = client, shown
        self._one_try = client.with_limits()
        self._writing: dict[str, asyncio.Task[Pod]] = {}
        self._moved: dict[str, tuple[str, str]] = {}
        """By UID: the version that our last write replaced, and the version that it left."""

    async def bump_version(self, pod: Pod, why: str) -> Pod:
        """Move the pod's version. Raise Conflict if the pod has changed since we read it, e.g. was bound."""
        while True:
            body = condition(pod, SCHEDULER_ERROR, why)
            # A new time makes the call a change: a patch that changes nothing would not move the version.
            body["status"]["conditions"][0]["lastProbeTime"] = _now()
            written = await self._write(self._client, pod, body)
            if written.metadata.resource_version != pod.metadata.resource_version:
                return written
            await asyncio.sleep(1.0)  # the second time within one second: the server counts in seconds

    async def write(self, pod: Pod, body: Json) -> Pod:
        """Patch the pod's status, with one try. Raise Conflict if the pod has changed since we read it:
        otherwise a reason to wait could be written to a pod that was bound a moment ago."""
        return await self._write(self._one_try, pod, body)

    async def _write(self, client: Client, pod: Pod, body: Json) -> Pod:
        meta = pod.metadata
        guarded = {**body, "metadata": {"resourceVersion": meta.resource_version}}
        sent = client.patch(
            PODS, meta.name, guarded, meta.namespace, kind=Patch.STRATEGIC, subresource="status"
        )
        writing = self._writing[meta.uid] = asyncio.ensure_future(sent)
        try:
            written = await writing
        finally:
            if self._writing.get(meta.uid) is writing:
                del self._writing[meta.uid]
        shown = self._shown.get(key(pod))
        if shown is not None and shown.metadata.uid == meta.uid:  # else `on_pod` would never forget it
            self._moved[meta.uid] = (meta.resource_version, written.metadata.resource_version)
        return written

    async def latest(self, pod: Pod) -> Pod:
        """Return the pod at the version that our last write left, if that write replaced this very version:
        then no other write can be in between. It does not matter whether the watch has shown it by now."""
        meta = pod.metadata
        if writing := self._writing.get(meta.uid):
            await asyncio.wait({writing})
        replaced, left = self._moved.get(meta.uid, ("", ""))
        if replaced != meta.resource_version:
            return pod
        return structs.replace(pod, metadata=structs.replace(meta, resource_version=left))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Forget our writes to a pod that is bound or gone."""
        if (pod := new or old) is not None and (new is None or new.spec.node_name):
            self._moved.pop(pod.metadata.uid, None)


def condition(pod: Pod, reason: str, message: str) -> Json:
    """Return the condition PodScheduled=False, which kubectl shows and cluster autoscalers act upon. Its time
    is when the pod began to wait, whatever the reason was then."""
    known = next((each for each in pod.status.conditions if each.type == SCHEDULED), None)
    since = known.last_transition_time if known and known.status == "False" else None
    scheduled = {
        "type": SCHEDULED,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or _now(),
    }
    return {"status": {"conditions": [scheduled]}}


def _now() -> str:
    return timestamps.seconds(datetime.now(UTC))
