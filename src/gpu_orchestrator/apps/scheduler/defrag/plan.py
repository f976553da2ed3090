"""What to make room for, and the moves that do it. Pure: what was seen of the cluster goes in."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_orchestrator.api import gangs, names
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Others, Unschedulable
from gpu_orchestrator.apps.scheduler.defrag import movable
from gpu_orchestrator.apps.scheduler.defrag.look import Seen
from gpu_orchestrator.apps.scheduler.defrag.movable import Found
from gpu_orchestrator.core import defragment
from gpu_orchestrator.core.defragment import Moves, NoMoves, Terms
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request, Shape, Toleration
from gpu_orchestrator.policies.registry import UnknownPolicy

MOST_DOMAINS = 64
TOLERATED = tuple(Toleration(name, "Exists") for name in names.GPU_RESOURCES)
"""Taints that the webhook lets claimed pods tolerate."""


class BadWish(ValueError):
    """Nobody could make room for this; the message says why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` pods with `gpus` each, or a `pod` that waits, as `namespace/name`, with all of its gang."""

    gpus: int = 0
    count: int = 1
    pod: str = ""
    model: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    min_bandwidth_gbps: int = 0
    policy: str = ""
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    wanted: tuple[Request, ...]
    answer: Moves | NoMoves
    found: Found


def make(seen: Seen, wish: Wish, rng: Rng) -> Plan:
    """Return the cheapest moves. Raises `BadWish`."""
    coordinator, found = seen.coordinator, movable.find(seen)
    wanted = _of_pod(coordinator, wish.pod) if wish.pod else _of_shape(wish)
    terms = Terms(seen.registry.policy_of, rng, {each.name: each.allowed for each in seen.budgets})
    try:
        answers = [
            defragment.find(each, coordinator.engine.cluster, found.movables, terms)
            for each in _in_domains(coordinator, wanted)
        ]
    except UnknownPolicy as error:
        raise BadWish(str(error)) from error
    return Plan(wanted, _best(answers), found)


def _best(answers: Iterable[Moves | NoMoves]) -> Moves | NoMoves:
    def order(answer: Moves | NoMoves) -> tuple[int, int, float]:
        return (0, *answer.cost) if isinstance(answer, Moves) else (1, -answer.placed, 0.0)

    return min(answers, key=order)


def _of_shape(wish: Wish) -> tuple[Request, ...]:
    try:
        shape = Shape(
            gpus=wish.gpus,
            models=(wish.model,) if wish.model else (),
            mode="Required" if wish.min_bandwidth_gbps else "Preferred",
            min_bandwidth_gbps=wish.min_bandwidth_gbps,
            labels=tuple(sorted(wish.labels)),
            tolerations=TOLERATED,
        )
    except InvalidRequest as error:
        raise BadWish(str(error)) from error
    return tuple(
        Request(f"wanted {number}", shape, strategy=wish.strategy, allocator=wish.policy)
        for number in range(wish.count)
    )


def _of_pod(coordinator: Coordinator, name: str) -> tuple[Request, ...]:
    pod = coordinator.stores.pods.get(name)
    if pod is None:
        raise BadWish(f"there is no pod {name} that has not ended; write NAMESPACE/NAME")
    if pod.spec.node_name:
        raise BadWish(f"pod {name} has a node already: {pod.spec.node_name}")
    if pod.metadata.uid not in coordinator.our_pods:
        raise BadWish(f"pod {name} is for the scheduler {pod.spec.scheduler_name!r}; see --scheduler-name")
    first = _request(coordinator, pod)
    if first.gang is None:
        return (first,)
    members = [_request(coordinator, each) for each in _with(coordinator, pod)]
    alike = tuple(each for each in members if each.shape == first.shape)
    if any(each.shape != first.shape and each.shape.gpus for each in members):
        raise BadWish(f"members of gang {first.gang.name} ask for different things; say it with --gpus")
    return alike


def _with(coordinator: Coordinator, pod: Pod) -> list[Pod]:
    """Return the pods of the same gang that wait."""
    waiting = coordinator.stores.pods.by("waiting", pod.metadata.namespace)
    ours = [each for each in waiting if each.metadata.uid in coordinator.our_pods]
    name = _gang_of(coordinator, pod)
    return [each for each in ours if _gang_of(coordinator, each) == name]


def _gang_of(coordinator: Coordinator, pod: Pod) -> str:
    stores = coordinator.stores
    claim = stores.claim_of(pod)
    try:
        terms = gangs.terms(pod, claim.spec if claim else None, stores.group_of(pod))
    except BadGpuRequest:
        return ""
    return terms.name if terms else ""


def _request(coordinator: Coordinator, pod: Pod) -> Request:
    stores = coordinator.stores
    others = Others(shunned_by=coordinator.shunned_by(pod))
    found = pod_request.request_of(pod, stores.claim_of(pod), stores, others)
    if isinstance(found, Unschedulable):
        raise BadWish(f"pod {key(pod)}: {found.why}")
    return found


def _in_domains(coordinator: Coordinator, wanted: tuple[Request, ...]) -> Sequence[tuple[Request, ...]]:
    """Return what is wanted as it is, or once for each domain of nodes if all must be in one."""
    domain = wanted[0].gang.domain if wanted[0].gang else ""
    if not domain:
        return [wanted]
    labels = (node.label(domain) for node in coordinator.engine.cluster)
    values = sorted({value for value in labels if value})[:MOST_DOMAINS]
    if not values:
        raise BadWish(f"no node has the label {domain}, of which all members of the gang want one value")
    return [
        tuple(replace(each, shape=replace(each.shape, within=(domain, value))) for each in wanted)
        for value in values
    ]
