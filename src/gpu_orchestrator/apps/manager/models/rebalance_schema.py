"""The request, the answers and the events of `/cluster/rebalance`."""

from gpu_orchestrator.apps.manager.models.rebalance import Strategy
from gpu_orchestrator.apps.manager.schema import Answer, Body


class RebalanceRequest(Body, frozen=True):
    """`strategy` says what to even out: the memory that is held, the load, or the number of models. With
    `dry_run` nothing is moved. With `force` also models that a task uses, which is then retried, and pinned
    ones, whose pin moves along."""

    strategy: Strategy = "memory_optimized"
    force: bool = False
    dry_run: bool = False


class RebalanceOperation(Answer, frozen=True):
    """One model that moves. It is loaded on `to_worker` first, by the task `task_id`, and then unloaded on
    `from_worker`. `status` is `planned`, `loading`, `moved`, `kept` (a task uses it now) or `failed`; `note`
    says why. `benefit` is how much more even the two workers become."""

    operation: str
    model_name: str
    from_worker: str
    to_worker: str
    memory_bytes: int
    estimated_seconds: float
    benefit: float
    reason: str
    status: str = "planned"
    task_id: str = ""
    note: str = ""


class Rebalance(Answer, frozen=True):
    """`status` is `planned` (a dry run), `nothing_to_do`, `running` or `completed`."""

    rebalance_id: str
    status: str
    strategy: str
    force: bool
    estimated_duration: str
    estimated_seconds: float
    affected_workers: list[str]
    operations: list[RebalanceOperation]


class RebalanceStarted(Answer, frozen=True):
    rebalance_id: str
    strategy: str
    operations: int
    affected_workers: list[str]


class RebalanceEnded(Answer, frozen=True):
    """How many models moved, stayed because a task uses them now, and could not be loaded elsewhere."""

    rebalance_id: str
    moved: int
    kept: int
    failed: int
