"""When a workload is tried again: doubling waits with a little chance in them, never above five minutes."""

from datetime import datetime, timedelta

from gpu_orchestrator.api.gpuworkload import RetryPolicy
from gpu_orchestrator.core.policy import Rng

CAP_S = 300.0
JITTER = 0.1


def delay_s(base_s: float, retry: int, rng: Rng) -> float:
    """The wait after so many doublings. Chance comes before the cap, so that the cap is never exceeded."""
    jitter = 1.0 + JITTER * (2.0 * rng.random() - 1.0)
    return min(base_s * 2.0**retry * jitter, CAP_S)


def next_try(policy: RetryPolicy, spent: int, now: datetime, rng: Rng) -> datetime | None:
    """When to try again after `spent` failed tries; None when that was the last."""
    if spent >= policy.max_retries:
        return None
    return now + timedelta(seconds=delay_s(policy.backoff_seconds, spent - 1, rng))
