"""Answers and events about scaling."""

from gpu_orchestrator.apps.manager.schema import Answer


class ScaleEvent(Answer, frozen=True):
    """One decision of the autoscaler: `up`, `keep` (workers that were draining are used again), `drain` or
    `stop`. `from_workers` and `to_workers` are how many it wants; the predicted wait is null if nobody could
    do the work."""

    action: str
    from_workers: int
    to_workers: int
    workers: list[str]
    reason: str
    provisioner: str
    waiting_tasks: int
    running_tasks: int
    work_seconds: float
    side_by_side: float
    predicted_wait_seconds: float | None
    target_wait_seconds: float


class ScalingStatus(Answer, frozen=True):
    """What the autoscaler wants, and why. `enabled` is false without a provisioner. `work_seconds` is what
    waiting tasks are expected to take, `side_by_side` how many tasks run at once. `trouble` is why workers
    cannot be started or ended. If another process leads, `leader` says which: it knows the numbers, and here
    they are those that it stored."""

    enabled: bool
    provisioner: str
    leader: str
    wanted_workers: int
    online_workers: list[str]
    draining_workers: list[str]
    stopping_workers: list[str]
    least_workers: int
    most_workers: int
    why: str
    trouble: str
    waiting_tasks: int
    running_tasks: int
    work_seconds: float
    side_by_side: float
    predicted_wait_seconds: float | None
    target_wait_seconds: float
