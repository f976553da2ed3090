"""What may be evicted for a pod of higher priority: our bound pods, each alone or with its gang. And which
pods end soon anyway.

Pure. `controllers/preemption` calls it with what the coordinator knows.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpu_orchestrator.api import gangs, neighbours, timestamps
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import DisruptionBudget, Pod
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import profile_milli
from gpu_orchestrator.core.pod_rules import Neighbour, PodSelector
from gpu_orchestrator.core.victims import Evictable

NEVER = "Never"
SOON_S = 60.0
"""A pod that is deleted counts as ended soon if its grace period ends this soon, or has ended since."""


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


def ends_soon(pod: Pod, now: datetime, *, has_room: bool) -> bool:
    """Return True if a deleted pod need not be evicted to be gone soon. Its owner chose its grace period and
    its finalizers: nobody else waits for these. `has_room`: it was evicted for the pod that waits, which
    then waits for the whole grace period."""
    until = timestamps.parse_or_none(pod.metadata.deletion_timestamp or "")
    if until is None:
        return False
    left_s = (until - now).total_seconds()
    return left_s >= -SOON_S and (has_room or left_s <= SOON_S)


def evictables(
    pods: Iterable[Pod],
    held: Callable[[Pod], tuple[Placement, ...]],
    claim_of: Callable[[Pod], GpuClaimSpec | None],
    group_of: Callable[[Pod], PodGroup | None],
    guards: Sequence[Budget],
    now: datetime,
) -> Generator[None, None, list[Evictable]]:
    """Return these bound pods as what ends together, step by step. A gang has the highest priority of its
    members: it is evicted whole, so for a pod between two priorities it stays. The pods of a PodGroup end
    together only if it says so. What ends anyway is not among them, or its owner could keep a gang from being
    evicted by a member that never ends."""
    guarding: defaultdict[str, list[Budget]] = defaultdict(list)
    for guard in guards:
        for namespace in guard.pods.namespaces or ():
            guarding[namespace].append(guard)
    together: defaultdict[str, list[Evictable]] = defaultdict(list)
    for pod in pods:
        yield
        if pod.metadata.deletion_timestamp or not (placements := held(pod)):
            continue
        group = group_of(pod)
        name = ends_with(pod, claim_of(pod), group)
        covering = tuple(each.name for each in guarding[pod.metadata.namespace] if each.covers(pod))
        lost = _lost(pod, placements, claim_of(pod), now)
        together[name].append(Evictable(name, placements, gangs.priority(pod, group), lost, covering, 1))
    return [
        Evictable(
            name,
            tuple(placement for each in members for placement in each.placements),
            priority=max(each.priority for each in members),
            lost_gpu_s=sum(each.lost_gpu_s for each in members),
            budgets=tuple(budget for each in members for budget in each.budgets),
            pods=len(members),
        )
        for name, members in together.items()
    ]


def ends_with(pod: Pod, claim: GpuClaimSpec | None, group: PodGroup | None) -> str:
    """Return the key of what is evicted as one with this pod: its own, or one for its gang."""
    if gangs.group_name(pod):
        is_whole = group is not None and group.is_evicted_whole
        return f"group {gangs.group_key(pod)}" if is_whole else pod.metadata.uid
    try:
        terms = gangs.terms(pod, claim)
    except BadGpuRequest:
        terms = None
    return f"gang {terms.name}" if terms else pod.metadata.uid


def _lost(pod: Pod, held: Iterable[Placement], claim: GpuClaimSpec | None, now: datetime) -> float:
    """Return the work that is lost, in GPU-seconds since the pod got its node. A slice is a part of a GPU."""
    bound = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
    since = timestamps.parse_or_none(bound.last_transition_time or "") if bound else None
    if since is None:
        return 0.0
    milli = profile_milli(claim.devices.mig_profile) if claim and claim.devices.mig_profile else 0
    gpus = sum(len(each.devices) * (milli or each.milli) / 1000 for each in held)
    return max((now - since).total_seconds(), 0.0) * gpus
