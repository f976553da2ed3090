"""Read from a pod how long it runs at most, and when it ends.

It says so by annotation, or by `activeDeadlineSeconds`, which the kubelet enforces. Anybody may write either:
what cannot be read is an error with the words for its owner.
"""

from datetime import datetime, timedelta

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.claims import BadGpuRequest, shortened
from gpu_orchestrator.api.kubernetes import Pod

MOST_S = 366 * 86_400


def declared_s(pod: Pod, *, enforced_only: bool = False) -> float:
    """Return how long the pod runs at most, in seconds; 0 if it does not say. `enforced_only`: what nobody
    enforces does not count. Raises `BadGpuRequest`."""
    deadline = pod.spec.active_deadline_seconds
    said = [_annotated(pod), deadline if 0 < deadline <= MOST_S else 0]
    found = [each for each in (said[1:] if enforced_only else said) if each]
    return float(min(found, default=0))


def end(pod: Pod, *, enforced_only: bool = False) -> datetime | None:
    """Return when a bound pod ends at the latest; None if that is not known."""
    try:
        run_s = declared_s(pod, enforced_only=enforced_only)
    except BadGpuRequest:  # written after the pod was bound
        return None
    bound = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    since = timestamps.parse_or_none(bound.last_transition_time or "") if bound else None
    return since + timedelta(seconds=run_s) if since and run_s else None


def _annotated(pod: Pod) -> int:
    text = pod.metadata.annotations.get(names.MAX_RUNTIME)
    if text is None:
        return 0
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 8 else 0
    if not 1 <= number <= MOST_S:
        raise BadGpuRequest(
            f"{names.MAX_RUNTIME} is {shortened(text)!r}; write a number of seconds from 1 to {MOST_S}"
        )
    return number
