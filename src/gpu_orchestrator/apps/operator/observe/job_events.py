"""Find out from a Job's events why it creates no pod.

Called by `snapshot_reader` for a Job that has had its time to create one. Events are not watched.
"""

from collections.abc import Sequence

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import EVENTS, Event


async def last_warning(client: Client, job: Job) -> str:
    """Return the note of the Job's newest warning; empty if it has none or the API server does not answer."""
    meta = job.metadata
    try:
        found = await client.list(EVENTS, meta.namespace, fields=f"regarding.uid={meta.uid},type=Warning")
    except KubeError:
        return ""
    return newest(found.items)


def newest(warnings: Sequence[Event]) -> str:
    return max(warnings, key=_at).note if warnings else ""


def _at(event: Event) -> str:
    """Return when the event last happened. The Job controller writes events of the older form, whose times
    the newer form calls deprecated."""
    series = event.series.last_observed_time if event.series else ""
    return max(series, event.event_time or "", event.deprecated_last_timestamp or "")
