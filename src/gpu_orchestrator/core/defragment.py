"""Choose which pods to move so that a shape finds room: the fewest pods, and of equally few those that lose
the least work.

Pure, like `victims`: the answer names what to move and where it could go, and the caller evicts. What moves
together, a pod or a whole gang, is a `Movable`. It moves only to nodes that are not being cleared, and
nothing moves to make room for something that moves.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide_among
from gpu_orchestrator.core.gang import Gang, GangRefusal, PolicyOf, decide_gang
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.core.standing import FITS, current, first_obstacle
from gpu_orchestrator.core.victim_search import few
from gpu_orchestrator.core.victims import Evictable, allows, cost, forbidding

MOST_CHECKS = 5_000
"""Sets of pods that are tried before the best one found so far is taken: a few seconds."""
MOST_NODES = 128
"""Nodes that are looked at closely, those where the fewest must go first."""
RELOCATION = 10
"""To look for other places costs as much as this many checks, and three more for each pod."""
FREE = 0, 0.0
SEARCH_STEPS = 3_000
"""Nodes that the search for other places tries in all."""


@dataclass(frozen=True, slots=True)
class Movable:
    """`held` is what moves and what is lost by it. `members` are how its pods would be asked for again, and
    `terms` those of their gang, if they move as one."""

    held: Evictable
    members: tuple[Request, ...]
    terms: GangTerms | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """`places` are where the members could go."""

    movable: Movable
    places: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """Once these have moved, there is `room` for all that was wanted."""

    room: tuple[Placement, ...]
    moves: tuple[Move, ...] = ()

    @property
    def cost(self) -> tuple[int, float]:
        return cost(each.movable.held for each in self.moves)


@dataclass(frozen=True, slots=True)
class NoMoves:
    """`placed` fit now, and `refusal` says why the next one does not. Nodes are counted by why no move helps
    there: what is there may not move, or fits nowhere else, or a budget forbids it. `is_complete`: all moves
    were tried."""

    placed: int
    refusal: Refusal
    stays: int = 0
    nowhere: int = 0
    forbidden: tuple[tuple[str, int], ...] = ()
    is_complete: bool = True

    @property
    def message(self) -> str:
        counted = [
            (self.stays, "what is in the way may not be moved"),
            (self.nowhere, "what would have to move fits nowhere else"),
            *((count, f"disruption budget {name} forbids it") for name, count in self.forbidden),
        ]
        why = [f"on {count} {'node' if count == 1 else 'nodes'} {said}" for count, said in counted if count]
        tried = "no moves make room" if self.is_complete else "none of the moves that were tried makes room"
        return f"{self.refusal.message}; {': '.join([tried, *([', '.join(why)] if why else [])])}"


@dataclass(frozen=True, slots=True)
class Terms:
    """How to decide, and what may be evicted under each disruption budget now."""

    policy_of: PolicyOf
    rng: Rng
    budgets: Mapping[str, int]


def find(
    wanted: Sequence[Request], cluster: Cluster, movables: Sequence[Movable], terms: Terms
) -> Moves | NoMoves:
    """Return the cheapest moves after which all of `wanted`, which ask alike, have room; or why there are
    none. Changes nothing."""
    together = Gang(GangTerms("room", len(wanted)), tuple(wanted), len(wanted))
    answer = decide_gang(together, cluster, terms.policy_of, terms.rng)
    if not isinstance(answer, GangRefusal):
        return Moves(answer)
    search = _Search(wanted[0], cluster, movables, terms)
    search.descend(tuple(wanted), 0, (), search.cluster, ())
    return search.best or search.why_not(answer)


Gone = tuple[Movable, ...]
Room = tuple[Placement, ...]


class _Search:
    """Gives the wanted ones nodes, one after the other, and the nodes where the fewest must go first."""

    def __init__(self, like: Request, cluster: Cluster, movables: Sequence[Movable], terms: Terms) -> None:
        self.cluster, self.terms, self.policy = cluster.copy(), terms, terms.policy_of(like)
        standing = current(like.shape, self.cluster, self.policy)
        self.filters, self.gpus = standing.filters, like.shape.whole_gpus
        self.on: dict[int, list[Movable]] = {}
        for movable in movables:
            for node in _nodes(movable):
                self.on.setdefault(self.cluster.row(node), []).append(movable)
        self.is_apart = all(len(_nodes(each)) == 1 for each in movables)
        """Nothing is on two nodes at once. Then more pods that move never fit better."""
        self.eligible: list[int] = standing.eligible().tolist()
        self.order = sorted((self._least(row), row) for row in self.eligible)[:MOST_NODES]
        most = max((len(self.cluster.inventory.nodes[row].devices) for _, row in self.order), default=0)
        self.most_there = most // self.gpus if self.gpus else 0
        """How many of the wanted have room on one node at most."""
        self.checks = MOST_CHECKS
        self.best: Moves | None = None
        self.nowhere: set[int] = set()
        self._hopeless: set[object] = set()
        self._steps = [SEARCH_STEPS]

    def descend(self, left: Sequence[Request], start: int, gone: Gone, world: Cluster, room: Room) -> None:
        """Clear nodes from number `start` on for those that are left; keep the result if it is the best."""
        if not left:
            self._settle(gone, world, room)
            return
        for at in range(start, len(self.order)):
            row = self.order[at][1]
            name = self._name(row)
            is_used = any(each.node == name for each in room)
            floor = FREE if is_used else self._floor(at, len(left))
            if self.checks <= 0 or not self._may_be_best(gone, floor):
                return
            for chosen in self._sets(row, gone, world):
                after = world.copy()
                _release(chosen, after)
                place = decide_among([row], left[0], after, self.policy, self.terms.rng)
                if not isinstance(place, Placement) or place.node != name:
                    continue
                after.place(place)
                moving, rooms = (*gone, *chosen), (*room, place)
                if self.is_apart and self._elsewhere(moving, after, rooms) is None:
                    self.nowhere.add(row)
                else:
                    self.descend(left[1:], at, moving, after, rooms)

    def _settle(self, gone: Gone, world: Cluster, room: Room) -> None:
        if not self._may_be_best(gone):
            return
        moves = self._elsewhere(gone, world, room)
        if moves is None:
            self.nowhere.update(self.cluster.row(each.node) for each in room)
        else:
            self.best = Moves(room, moves)

    def _may_be_best(self, gone: Gone, more: tuple[int, float] = FREE) -> bool:
        pods, lost = _cost(gone)
        return self.best is None or (pods + more[0], lost + more[1]) < self.best.cost

    def _floor(self, at: int, left: int) -> tuple[int, float]:
        """Return what it costs at least to clear nodes from number `at` on for those that are left."""
        if not self.is_apart or not self.most_there:
            return FREE
        nodes = [least for least, _ in self.order[at : at - (-left // self.most_there)]]
        return sum(pods for pods, _ in nodes), sum(lost for _, lost in nodes)

    def _least(self, row: int) -> tuple[int, float]:
        """Return what it costs at least to clear this node, by the number of devices."""
        missing, pods = self.gpus - int(self.cluster.usage.whole[row]), 0
        name, here = self._name(row), self.on.get(row, ())
        for devices in sorted((_devices(each, name) for each in here), reverse=True):
            if missing <= 0:
                break
            missing, pods = missing - devices, pods + 1
        return pods, sum(sorted(each.held.lost_gpu_s for each in here)[:pods])

    def _sets(self, row: int, gone: Gone, world: Cluster) -> Iterator[Gone]:
        """Yield sets of what may move from this node without which one more fits there, cheap ones first."""
        keys = {each.held.key for each in gone}
        here = [each for each in self.on.get(row, ()) if each.held.key not in keys]
        missing, name = self.gpus - int(world.usage.whole[row]), self._name(row)
        enough = list[set[str]]()
        if not self._fits(row, here, world):
            return
        for size in range(len(here) + 1):
            if not few(len(here), size):
                yield from self._irreducible(row, here, gone, world)
                return
            for chosen in sorted(combinations(here, size), key=_cost):
                if self.checks <= 0 or not self._may_be_best((*gone, *chosen)):
                    break
                if sum(_devices(each, name) for each in chosen) < missing:
                    continue
                names = {each.held.key for each in chosen}
                if self.is_apart and any(each <= names for each in enough):
                    continue
                if self._is_allowed((*gone, *chosen)) and self._fits(row, chosen, world):
                    enough.append(names)
                    yield chosen

    def _irreducible(self, row: int, here: Sequence[Movable], gone: Gone, world: Cluster) -> Iterator[Gone]:
        """Yield a set none of which could stay: all are taken away, and as many as possible put back, the
        dearest first."""
        left = list(here)
        for movable in sorted(here, key=lambda each: _cost((each,)), reverse=True):
            without = [each for each in left if each is not movable]
            if self._fits(row, without, world):
                left = without
        if self._is_allowed((*gone, *left)):
            yield tuple(left)

    def _is_allowed(self, gone: Sequence[Movable]) -> bool:
        return allows([each.held for each in gone], self.terms.budgets)

    def _fits(self, row: int, without: Sequence[Movable], world: Cluster) -> bool:
        self.checks -= 1
        placements = [place for each in without for place in each.held.placements]
        return self._fits_without(row, placements, world)

    def _fits_without(self, row: int, placements: Sequence[Placement], world: Cluster) -> bool:
        released = [world.release(each) for each in placements if each.node == self._name(row)]
        fits = first_obstacle(self.filters, world, row) is None
        for each in released:
            world.account(each)
        return fits

    def _elsewhere(self, gone: Gone, world: Cluster, room: Room) -> tuple[Move, ...] | None:
        """Return where those that move could go while the nodes with the room are closed; None if they
        cannot. What is known of some holds for others that ask alike."""
        closed = frozenset(each.node for each in room)
        kinds = Counter((each.terms, member.shape) for each in gone for member in each.members)
        asked = frozenset(kinds.items()) if self.is_apart else (gone, room)
        if (closed, asked) in self._hopeless:
            return None
        self.checks -= RELOCATION + 3 * len(gone) if gone else 0
        twin = world.copy()
        for name in closed:
            twin.set_node(replace(twin.node(name), schedulable=False))
        moves = _moved(gone, twin, self.terms, self._steps)
        if moves is None:
            self._hopeless.add((closed, asked))
        return moves

    def why_not(self, answer: GangRefusal) -> NoMoves:
        """Say of each node why nothing helps there; of those that are too small, nothing."""
        stays, blocked = 0, Counter[str]()
        for row in set(self.eligible) - self.nowhere:
            here = self.on.get(row, [])
            may_go = [each for each in here if self._is_allowed([each])]
            if not self._fits(row, here, self.cluster):
                held = list(self.cluster.held_on(self._name(row)).values())
                stays += self._fits_without(row, held, self.cluster)
            elif not self._fits(row, may_go, self.cluster) or not self._is_allowed(may_go):
                blocked[forbidding([each.held for each in here], self.terms.budgets)] += 1
        is_complete = min(self.checks, self._steps[0]) > 0 and len(self.order) == len(self.eligible)
        forbidden = tuple(sorted(blocked.items()))
        return NoMoves(answer.placed, answer.reason, stays, len(self.nowhere), forbidden, is_complete)

    def _name(self, row: int) -> str:
        node = self.cluster.inventory.nodes[row]
        return node.name if node else ""


def _moved(gone: Gone, world: Cluster, terms: Terms, steps: list[int]) -> tuple[Move, ...] | None:
    """Return places for all of these, each of which is in `world` then. Gangs that need one domain of nodes
    come first, all others together. `steps` is how many the search for them may take."""
    for member in {member.shape: member for each in gone for member in each.members}.values():
        if not (current(member.shape, world, terms.policy_of(member)).codes == FITS).any():
            return None
    found: dict[str, Placement] = {}
    confined = [each for each in gone if each.terms and each.terms.domain]
    gangs = [(each.terms or GangTerms(""), each.members) for each in confined]
    if others := tuple(member for each in gone if each not in confined for member in each.members):
        gangs.append((GangTerms("those that move", len(others)), others))
    for of_gang, members in gangs:
        asked = Gang(of_gang, members, len(members))
        answer = decide_gang(asked, world, terms.policy_of, terms.rng, steps)
        if isinstance(answer, GangRefusal):
            return None
        for place in answer:
            world.place(place)
            found[place.key] = place
    return tuple(Move(each, tuple(found[member.key] for member in each.members)) for each in gone)


def _release(gone: Gone, world: Cluster) -> None:
    for each in gone:
        for placement in each.held.placements:
            world.release(placement)


def _nodes(movable: Movable) -> set[str]:
    return {each.node for each in movable.held.placements}


def _devices(movable: Movable, node: str) -> int:
    return sum(len(each.devices) for each in movable.held.placements if each.node == node)


def _cost(gone: Sequence[Movable]) -> tuple[int, float]:
    return cost(each.held for each in gone)
