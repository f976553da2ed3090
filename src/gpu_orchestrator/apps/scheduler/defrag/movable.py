"""Which bound pods may move, and how each would be asked for again.

Pure. A pod moves if its owner allows it, a controller makes it again, and nothing else of its gang stays
behind.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_orchestrator.api import gangs, names
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.cycle import pod_request, preemptible
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Others, Unschedulable
from gpu_orchestrator.apps.scheduler.defrag.look import Seen
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.defragment import Movable
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.core.victims import Evictable

NOT_ALLOWED = f'their owners do not allow it (annotation {names.MOVABLE}: "true")'
NOT_MADE_AGAIN = "no controller would make them again"
WITH_OTHERS = "others of their gang may not move"
CANNOT_BE_ASKED = "nobody could schedule them again as they are"


@dataclass(frozen=True, slots=True)
class Found:
    """`pods` are those of all movables by UID. `kept` counts the bound pods that stay, by why."""

    movables: tuple[Movable, ...]
    pods: dict[str, Pod]
    kept: tuple[tuple[str, int], ...]


def find(seen: Seen) -> Found:
    """Return the pods of this scheduler that may move."""
    movables, pods, kept = list[Movable](), dict[str, Pod](), Counter[str]()
    for evictable in _evictables(seen):
        together = _pods(seen.coordinator, evictable)
        answer = _movable(seen.coordinator, evictable, together)
        if isinstance(answer, Movable):
            movables.append(answer)
            pods |= {pod.metadata.uid: pod for pod in together}
        else:
            kept[answer] += len(together)
    return Found(tuple(movables), pods, tuple(sorted(kept.items())))


def _evictables(seen: Seen) -> list[Evictable]:
    coordinator = seen.coordinator
    bound = [pod for pod in coordinator.our_pods.values() if pod.spec.node_name]
    stores = coordinator.stores
    steps = preemptible.evictables(
        bound,
        lambda pod: _held(coordinator, pod),
        stores.claim_spec,
        stores.group_of,
        seen.budgets,
        seen.at,
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Evictable] = end.value
            return found


def _held(coordinator: Coordinator, pod: Pod) -> tuple[Placement, ...]:
    """Return what a bound pod counts for, by itself and by its leases."""
    uid, cluster = pod.metadata.uid, coordinator.engine.cluster
    if pod.spec.node_name not in cluster:
        return ()
    on_node = cluster.held_on(pod.spec.node_name)
    keys = dict.fromkeys([uid, *(each.placement.key for each in coordinator.lease_index.holds(uid))])
    return tuple(on_node[each] for each in keys if each in on_node)


def _pods(coordinator: Coordinator, evictable: Evictable) -> list[Pod]:
    ours = coordinator.our_pods
    return [ours[each.key] for each in evictable.placements if each.key in ours]


def _movable(coordinator: Coordinator, evictable: Evictable, together: Sequence[Pod]) -> Movable | str:
    """Return these pods as what moves together, or why they stay."""
    reasons = Counter(why for why in map(_keeps, together) if why)
    if reasons:
        return next(iter(reasons)) if reasons.total() == len(together) else WITH_OTHERS
    members = [_asked(coordinator, pod) for pod in together]
    asked = tuple(each for each in members if each is not None)
    if not together or len(asked) < len(members):
        return CANNOT_BE_ASKED
    if len(together) > 1:
        return Movable(evictable, asked, _terms(asked))
    return Movable(evictable, (_beside_its_gang(coordinator, together[0], asked[0]),))


def _keeps(pod: Pod) -> str:
    """Return why a pod stays; empty if it may move."""
    meta = pod.metadata
    if meta.annotations.get(names.MOVABLE) != "true":
        return NOT_ALLOWED
    return "" if any(each.controller for each in meta.owner_references) else NOT_MADE_AGAIN


def _asked(coordinator: Coordinator, pod: Pod) -> Request | None:
    """Return what the pod that is made again would ask for; None if it would be refused."""
    stores = coordinator.stores
    try:
        others = Others(claim_user=pod, shunned_by=coordinator.shunned_by(pod))
        found = pod_request.request_of(pod, stores.claim_of(pod), stores, others)
    except Exception:  # the edge of one pod, as in the scheduler
        return None
    return None if isinstance(found, Unschedulable) else found


def _terms(members: Iterable[Request]) -> GangTerms | None:
    return next((each.gang for each in members if each.gang), None)


def _beside_its_gang(coordinator: Coordinator, pod: Pod, asked: Request) -> Request:
    """Return the request of a pod that moves alone: where others of its gang are, if all must be in one
    domain."""
    try:
        stores = coordinator.stores
        terms = gangs.terms(pod, stores.claim_spec(pod), stores.group_of(pod))
    except BadGpuRequest:
        return asked
    if terms is None or not terms.domain:
        return asked
    value = coordinator.engine.cluster.node(pod.spec.node_name).label(terms.domain) or ""
    return replace(asked, shape=replace(asked.shape, within=(terms.domain, value)))
