"""Writing to an unbound pod, so that no bind decided before can land after: every bind names the version of
the pod it was decided for. Whoever takes a reservation away from an unbound pod does this first."""

from datetime import UTC, datetime

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json

SCHEDULED = "PodScheduled"
UNSCHEDULABLE = "Unschedulable"
UNRESERVED = "SchedulerError"


async def touch(client: Client, pod: Pod, why: str) -> Pod:
    """Move the pod's version. Raises Conflict if it is no longer the one we know, as when it was bound."""
    body = condition(UNRESERVED, why)
    body["metadata"] = {"resourceVersion": pod.metadata.resource_version}
    # The moment makes every touch another write: one that changes nothing would not move the version.
    body["status"]["conditions"][0]["lastProbeTime"] = _now()
    return await write(client, pod, body)


async def write(client: Client, pod: Pod, body: Json) -> Pod:
    meta = pod.metadata
    return await client.patch(
        PODS, meta.name, body, meta.namespace, kind=Patch.STRATEGIC, subresource="status"
    )


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
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
