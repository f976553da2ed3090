"""Find out from a Job's ended pods why they failed, and where a claimed pod ran.

Called by `snapshot_reader` once per ended Job. Ended pods are not watched: a cluster may keep very many.
"""

from dataclasses import dataclass

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api.job import DEADLINE_EXCEEDED, ENDED_PODS, JOB_NAME_LABEL, EndedPod, Job
from gpu_orchestrator.api.translate import TERMINAL


@dataclass(frozen=True, slots=True)
class Findings:
    """Empty if the pods are gone or the API server does not answer; the Job's own conditions are used then.
    `placed` is a pod that had a node. `overran`: a pod ran into its deadline."""

    cause: str = ""
    placed: EndedPod | None = None
    overran: bool = False


async def examine(client: Client, job: Job) -> Findings:
    """Ask the API server's cache; only if that does not show an ended pod yet, the database behind it."""
    try:
        found = await _pods_of(client, job, version="0")
        if not any(pod.status.phase in TERMINAL for pod in found):
            found = await _pods_of(client, job)
    except KubeError:
        return Findings()
    return Findings(
        next((cause for pod in found if (cause := cause_of(pod))), ""),
        next((pod for pod in found if pod.spec.node_name), None),
        any(pod.status.reason == DEADLINE_EXCEEDED for pod in found),
    )


async def _pods_of(client: Client, job: Job, *, version: str = "") -> list[EndedPod]:
    labels = f"{JOB_NAME_LABEL}={job.metadata.name}"
    found = await client.list(ENDED_PODS, job.metadata.namespace, labels=labels, version=version)
    return list(found.items)


def cause_of(pod: EndedPod) -> str:
    if pod.status.phase != "Failed":
        return ""
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        ended = container.state.terminated
        if ended and ended.exit_code:
            reason = f" ({ended.reason})" if ended.reason else ""
            return f"container {container.name} ended with exit code {ended.exit_code}{reason}"
    return pod.status.message
