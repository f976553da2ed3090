"""What may be evicted for a pod of higher priority: our bound pods, each alone or with its gang.

Pure. `controllers/preemption` calls it with what the coordinator knows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpu_orchestrator.api import gangs, neighbours, timestamps
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import DisruptionBudget, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.pod_rules import Neighbour, PodSelector
from gpu_orchestrator.core.victims import Evictable

NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: which pods it covers, and how many of them may be evicted now."""

    name: str
    pods: PodSelector
    allowed: int

    def covers(self, pod: Pod) -> bool:
        return self.pods.matches(Neighbour(pod.metadata.namespace, pod.metadata.labels))


def budgets(found: Iterable[DisruptionBudget]) -> list[Budget]:
    """Return the budgets; one without a selector covers no pod."""
    return [
        Budget(
            key(each),
            PodSelector(frozenset({each.metadata.namespace}), neighbours.conditions(each.spec.selector)),
            max(each.status.disruptions_allowed, 0),
        )
        for each in found
        if each.spec.selector is not None
    ]


def evictables(
    pods: Iterable[Pod],
    held: Callable[[Pod], tuple[Placement, ...]],
    claim_of: Callable[[Pod], GpuClaimSpec | None],
    guards: Sequence[Budget],
    now: datetime,
) -> list[Evictable]:
    """Return these bound pods as what ends together. A gang has the highest priority of its members: it is
    evicted whole, so for a pod between two priorities it stays. What ends anyway is not among them."""
    together: dict[str, list[Pod]] = {}
    for pod in pods:
        together.setdefault(_together(pod, claim_of(pod)), []).append(pod)
    return [
        Evictable(
            name,
            tuple(placement for pod in members for placement in held(pod)),
            priority=max(pod.spec.priority for pod in members),
            lost_gpu_s=sum(_lost(pod, held(pod), now) for pod in members),
            budgets=tuple(each.name for pod in members for each in guards if each.covers(pod)),
            pods=len(members),
        )
        for name, members in together.items()
        if all(held(pod) and not pod.metadata.deletion_timestamp for pod in members)
    ]


def _together(pod: Pod, claim: GpuClaimSpec | None) -> str:
    try:
        terms = gangs.terms(pod, claim)
    except BadGpuRequest:
        terms = None
    return f"gang {terms.name}" if terms else pod.metadata.uid


def _lost(pod: Pod, held: Iterable[Placement], now: datetime) -> float:
    """Return the work that is lost, in GPU-seconds since the pod got its node."""
    bound = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    since = timestamps.parse_or_none(bound.last_transition_time or "") if bound else None
    if since is None:
        return 0.0
    gpus = sum(len(each.devices) * each.milli / 1000 for each in held)
    return max((now - since).total_seconds(), 0.0) * gpus
