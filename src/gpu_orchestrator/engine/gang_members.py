"""The members of one gang, as the engine knows them: those that wait, and those that have places. Kept by
`gangs`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import GangTerms, Shape
from gpu_orchestrator.engine.queue import Waiting

MOST_KINDS = 64
"""Different requests of one gang. Each costs a look at every node, all in one go."""
Stage = Literal["short", "queued", "parked"]


@dataclass(slots=True, eq=False)
class Members:
    """The members of one gang: those that wait, and the nodes of those that are in flight or held."""

    terms: GangTerms
    waiting: dict[str, Waiting] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    stage: Stage = "short"
    speaker: Waiting | None = None
    last: Waiting | None = None
    """The member that is last in turn, as of the last decision."""
    refusal: Refusal | None = None
    confirmed: set[str] = field(default_factory=set)
    ended_early: int = 0
    """Members that were placed and had ended before all others were."""
    has_begun: bool = False
    marked: set[str] = field(default_factory=set)
    """Members that carry the mark that the gang has begun."""
    has_observed: bool = False
    """Members were placed before a restart or by others: then nobody knows how many began together, unless
    one carries the mark."""
    told: set[str] = field(default_factory=set)
    attempts: int = 0
    rests_until: float = 0.0
    news: int = 0
    """What had become free when this gang was looked at, as `ParkedGangs` counts it."""

    @property
    def least(self) -> int:
        """How many of those that wait must be placed together; the others of the gang run already. Once
        enough have started, each that comes later, for one that ended, is placed beside those that run."""
        return 1 if self.has_begun else max(self.terms.least - len(self.started), 1)

    @property
    def is_short(self) -> bool:
        return len(self.waiting) < self.least

    @property
    def needs_judging(self) -> bool:
        """Return True if it is not known whether there is room for it: its places could not be taken, or
        nobody could judge it."""
        return self.refusal is None or bool(self.refusal.error)

    @property
    def kinds(self) -> set[Shape]:
        return {each.request.shape for each in self.waiting.values()}

    @property
    def has_many_kinds(self) -> bool:
        return len(self.waiting) > MOST_KINDS and len(self.kinds) > MOST_KINDS

    @property
    def by_turn(self) -> list[Waiting]:
        return sorted(self.waiting.values(), key=lambda each: (-each.lane, each.rank, each.number))


@dataclass(frozen=True, slots=True)
class PartlyStarted:
    """A gang of which `started` have places, fewer than the `least` that must start together."""

    gang: str
    least: int
    started: tuple[str, ...]


class WaitingGang(NamedTuple):
    """A gang as it would be decided now, the policies of its members by their keys, and those that run."""

    gang: Gang
    policies: Mapping[str, Policy]
    started: frozenset[str]


def waiting_gang(members: Members, cluster: Cluster) -> WaitingGang:
    policies = {key: each.policy for key, each in members.waiting.items()}
    return WaitingGang(to_decide(members, cluster), policies, frozenset(members.started))


def to_decide(gang: Members, cluster: Cluster) -> Gang:
    """Return the members that wait, as they are decided now."""
    members = tuple(each.request for each in gang.by_turn)
    return Gang(gang.terms, members, gang.least, _domain_of(gang, cluster))


def _domain_of(gang: Members, cluster: Cluster) -> str:
    """Return the domain in which members of the gang run."""
    nodes = (cluster.node(name) for name in gang.started.values() if name in cluster)
    values = (dict(node.labels).get(gang.terms.domain, "") for node in nodes) if gang.terms.domain else ()
    return next((value for value in values if value), "")


def short(gang: Members, nodes: int) -> Refusal:
    """Return what is said to members that wait for others. It has no count, or each member that comes would
    be news to all the others."""
    wanted = gang.terms.least
    return Refusal(nodes, gang=f"gang {gang.terms.name}: waits until {wanted} members are there")
