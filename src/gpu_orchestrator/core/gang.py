"""Decide where all members of a gang go together, or why they cannot.

A fold over `decide` on a copy of the cluster: each member is decided with those before it in place, the
hardest one first. Equal members need no more: any order of filling nodes places as many. For mixed ones a
bounded search tries other nodes before the gang is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Ints, count_in_row, where
from gpu_orchestrator.core.decide import decide, decide_among
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.limits import MOST_NUMBER
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.core.standing import FITS, current

SEARCH_STEPS = 2_000
"""Nodes that the search for mixed members tries before it gives up, in all domains together: about a fifth of
a second."""
MOST_SEARCHED = 32
"""Members of a gang for which the search may start: of a larger one it would see a small part."""
MOST_DOMAINS = 64
"""Domains in which a gang is tried, of those that have enough by the numbers."""

PolicyOf = Callable[[Request], Policy]
Together = tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Gang:
    """The members to decide now, and the terms of their gang. `least` of these members must get places; it is
    less than the terms say if others have started. `among` is the value of the terms' domain that the
    members already running have, if any runs."""

    terms: GangTerms
    members: tuple[Request, ...]
    least: int
    among: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= len(self.members):
            raise InvalidRequest(
                f"{self.least} members of gang {self.terms.name} must start together, "
                f"and it has {len(self.members)}"
            )

    @property
    def is_all(self) -> bool:
        return self.least == len(self.members)


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """`placed` members fit together, fewer than must. With these in place, `reason` says why the next one
    does not fit."""

    gang: Gang
    placed: int
    reason: Refusal

    @property
    def refusal(self) -> Refusal:
        """Return what is said to the owner of each member. `never`: it would not fit in an empty cluster
        either."""
        terms = self.gang.terms
        together = f"together in one {terms.domain}" if terms.domain else "together"
        said = f"gang {terms.name}: {self.placed} of {self.gang.least} members fit {together}"
        return replace(self.reason, gang=said)


def decide_gang(
    gang: Gang, cluster: Cluster, policy_of: PolicyOf, rng: Rng, steps: list[int] | None = None
) -> Together | GangRefusal:
    """Return places for `least` members or more, or why there are none. Changes nothing but `steps`: how many
    the search may take, of which it leaves those that it did not need."""
    terms, steps = gang.terms, [SEARCH_STEPS] if steps is None else steps
    if terms.domain:
        return _in_one_domain(gang, terms.domain, cluster, policy_of, rng, steps)
    if terms.near:
        answer = _in_one_domain(gang, terms.near, cluster, policy_of, rng, steps)
        if not isinstance(answer, GangRefusal):
            return answer
    return _together(gang, cluster, policy_of, rng, steps)


def _in_one_domain(
    gang: Gang, key: str, cluster: Cluster, policy_of: PolicyOf, rng: Rng, steps: list[int]
) -> Together | GangRefusal:
    """Try one domain after the other, the one with the least to spare first. Refuse with the words for the
    one in which most members fit. The search shares `steps` among the domains that are left: each has a part
    of what those before it did not need."""
    best: GangRefusal | None = None
    values = ([gang.among] if gang.among else domains(gang, key, cluster))[:MOST_DOMAINS]
    for left, value in zip(range(len(values), 0, -1), values, strict=True):
        members = tuple(confined(each, key, value) for each in gang.members)
        part = [steps[0] // left]
        steps[0] -= part[0]
        answer = _together(replace(gang, members=members), cluster, policy_of, rng, part)
        steps[0] += part[0]
        if not isinstance(answer, GangRefusal):
            return answer
        if best is None or answer.placed > best.placed:
            best = answer
    if best is None:
        return GangRefusal(gang, 0, _no_domain(gang, key, cluster))
    return replace(best, reason=replace(best.reason, never=False))


def _no_domain(gang: Gang, key: str, cluster: Cluster) -> Refusal:
    nodes = len(cluster)
    if not cluster.inventory.nodes_with[key]:
        return Refusal(nodes, ((f"have no label {key}", nodes),) if nodes else (), never=True)
    return Refusal(nodes, ((f"are in a {key} with too little free for {gang.least} members", nodes),))


def confined(member: Request, key: str, value: str) -> Request:
    return replace(member, shape=replace(member.shape, within=(key, value)))


def domains(gang: Gang, key: str, cluster: Cluster) -> list[str]:
    """Return the values of the label whose nodes have room for enough members by the numbers, the one with
    the least to spare first."""
    inventory = cluster.inventory
    label = inventory.label(key)[: inventory.size]
    numbers = np.where(inventory.alive, label, 0)
    counts = Counter(each.shape for each in gang.members)
    fitting = np.zeros(len(inventory.names), np.int64)
    enough = np.ones(len(inventory.names), np.bool_)
    for shape, count in counts.items():
        room = np.bincount(numbers, weights=_room(shape, cluster), minlength=len(fitting))
        fitting += np.minimum(room, count).astype(np.int64)
        if gang.is_all:
            enough &= room >= count
    enough &= fitting >= gang.least
    enough[0] = False  # those without the label
    spare = np.bincount(numbers, weights=cluster.usage.spare_milli, minlength=len(fitting))
    values = inventory.names.values
    return [values[at] for at in sorted(where(enough).tolist(), key=lambda at: (spare[at], values[at]))]


def may_fit(gang: Gang, cluster: Cluster, rooms: dict[Shape, int]) -> bool:
    """Return False if by the numbers there is not enough room for the gang. `rooms` is a memory for one state
    of the cluster."""
    fitting = 0
    for shape, count in Counter(each.shape for each in gang.members).items():
        if shape not in rooms:
            rooms[shape] = int(np.minimum(_room(shape, cluster), MOST_NUMBER)[cluster.inventory.alive].sum())
        if gang.is_all and rooms[shape] < count:
            return False
        fitting += min(rooms[shape], count)
    return fitting >= gang.least


def _room(shape: Shape, cluster: Cluster) -> Ints:
    """Return for each node how many of this shape its free devices could take at most."""
    rows = np.arange(cluster.inventory.size)
    if not shape.gpus:
        return np.full(len(rows), MOST_NUMBER, np.int64)
    one = replace(shape, gpus=1)  # of a node with devices of two vendors, all count
    free = Kind(one, cluster.inventory).free(cluster, rows)
    if shape.exclusive:
        return count_in_row(free) // shape.gpus
    per_device = cluster.usage.free_milli // max(shape.milli, 1)
    room: Ints = np.where(free, per_device, 0).sum(axis=1) // shape.gpus
    return room


def _together(
    gang: Gang, cluster: Cluster, policy_of: PolicyOf, rng: Rng, steps: list[int]
) -> Together | GangRefusal:
    for shape, member in {each.shape: each for each in gang.members}.items():
        if shape.within is None:
            current(shape, cluster, policy_of(member))  # kept for the next try; a copy's is lost with it
    in_order = hardest_first(gang.members)
    placed, refusal = _fold(in_order, cluster.copy(), policy_of, rng)
    if refusal is None or len(placed) >= gang.least:
        return tuple(placed)
    if not gang.is_all:
        others, _ = _fold(reversed(in_order), cluster.copy(), policy_of, rng)
        if len(others) >= gang.least:
            return tuple(others)
    elif _is_worth_searching(in_order):
        found = _search(in_order, cluster.copy(), policy_of, rng, steps)
        if found is not None:
            return found
    never = refusal.never or (gang.is_all and _is_too_much(gang, cluster))
    return GangRefusal(gang, len(placed), replace(refusal, never=never))


def _fold(
    members: Iterable[Request], twin: Cluster, policy_of: PolicyOf, rng: Rng
) -> tuple[list[Placement], Refusal | None]:
    """Place one after the other; return what was placed, and why the first one was refused that was."""
    placed, first, refused = list[Placement](), None, set[Shape]()
    for member in members:
        if member.shape in refused:
            continue
        answer = decide(member, twin, policy_of(member), rng)
        if isinstance(answer, Placement):
            twin.place(answer)
            placed.append(answer)
            continue
        first = first or answer
        if member.shape.rules is None:  # with fewer free devices it fits no better
            refused.add(member.shape)
    return placed, first


def hardest_first(members: Iterable[Request]) -> list[Request]:
    """Sort the members; equal shapes stay together, in the order in which they came."""
    first: dict[Shape, int] = {}
    for number, member in enumerate(members):
        first.setdefault(member.shape, number)

    def ease(member: Request) -> tuple[int, ...]:
        shape = member.shape
        rules = len(shape.labels) + len(shape.affinity) + len(shape.reach) + bool(shape.models)
        size = shape.gpus * shape.milli, shape.gpus, shape.memory_mib
        return *(-each for each in size), -shape.needs_bandwidth, -rules, first[shape]

    return sorted(members, key=ease)


def _is_worth_searching(members: list[Request]) -> bool:
    """Of equal members that each take whole devices, filling nodes in any order places as many."""
    shape = members[0].shape
    is_simple = shape.gpus <= 1 or (shape.exclusive and not shape.needs_bandwidth)
    are_alike = all(each.shape == shape for each in members)
    return len(members) <= MOST_SEARCHED and not (are_alike and is_simple and shape.rules is None)


def _search(
    members: list[Request], twin: Cluster, policy_of: PolicyOf, rng: Rng, steps: list[int], start: int = 0
) -> Together | None:
    """Try every node for every member, depth first. Equal members take nodes in ascending order only: which
    of them goes where makes no difference."""
    if not members:
        return ()
    member, rest = members[0], members[1:]
    policy = policy_of(member)
    for row in where(current(member.shape, twin, policy).codes == FITS).tolist():
        if row < start:
            continue
        if steps[0] <= 0:
            return None
        steps[0] -= 1
        placement = decide_among([row], member, twin, policy, rng)
        if not isinstance(placement, Placement):
            continue
        twin.place(placement)
        is_alike = bool(rest) and rest[0].shape == member.shape and member.shape.rules is None
        found = _search(rest, twin, policy_of, rng, steps, row if is_alike else 0)
        if found is not None:
            return (placement, *found)
        twin.release(placement)
    return None


def _is_too_much(gang: Gang, cluster: Cluster) -> bool:
    """Return True if there would not be enough devices if nothing were held."""
    counts = Counter(each.shape for each in gang.members)
    return any(_most_ever(shape, cluster) < count for shape, count in counts.items())


def _most_ever(shape: Shape, cluster: Cluster) -> int:
    if not shape.gpus or not (shape.exclusive or shape.milli):
        return MOST_NUMBER
    inventory = cluster.inventory
    devices = count_in_row(Kind(shape, inventory).matching(inventory, where(inventory.alive)))
    per_device = 1 if shape.exclusive else WHOLE // shape.milli
    return int((devices * per_device // shape.gpus).sum())
