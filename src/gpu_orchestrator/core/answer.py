"""What `decide` returns: a placement, or a refusal that explains itself.

A placement holds everything needed to take the same from a cluster again, so after a restart it can be
rebuilt from a pod's annotations or a lease.
"""

from dataclasses import dataclass, field

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.pod_rules import Neighbour
from gpu_orchestrator.core.request import HostPort


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices` are ids. `unnamed` counts whole GPUs whose ids are not known (given by a device plugin); the
    cluster picks stand-ins for them."""

    key: str
    node: str
    devices: tuple[int, ...] = ()
    exclusive: bool = True
    milli: int = WHOLE
    memory_mib: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    bandwidth_gbps: int = 0
    unnamed: int = 0
    volumes: tuple[tuple[str, str], ...] = ()
    neighbour: Neighbour | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """The node that lacks least, and what it lacks, in words."""

    node: str
    lacks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node} {' and '.join(self.lacks)}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reasons` count nodes by the first thing that keeps each from fitting, most frequent first. `never`
    means that no node of this cluster could take the request even if it were empty, ready and healthy.
    `error` is set if nothing was decided, because the policy raised or is unknown. `gang` is set for a member
    of a gang: how far the whole of it came. `quota` is set if the request's queue has no room, or room for
    some models only. `kept` says what places that are kept have to do with it: its own, or another's."""

    nodes: int
    reasons: tuple[tuple[str, int], ...] = ()
    nearest: Miss | None = None
    never: bool = False
    error: str = ""
    gang: str = ""
    quota: str = ""
    kept: str = ""

    @property
    def message(self) -> str:
        return f"{self._why}; {self.kept}" if self.kept else self._why

    @property
    def _why(self) -> str:
        if self.gang:
            said = f"{self.gang}; for the next one {self._of_nodes}" if self.reasons else self.gang
        elif self.quota and not (self.reasons or self.error):
            return self.quota
        else:
            said = self._of_nodes
        return f"{self.quota}; {said}" if self.quota else said

    @property
    def _of_nodes(self) -> str:
        if self.error:
            return f"0/{self.nodes} nodes fit: {self.error}"
        if not self.nodes:
            return "0/0 nodes fit: there are no nodes"
        counted = ", ".join(
            f"{count} {singular(text) if count == 1 else text}" for text, count in self.reasons
        )
        return f"0/{self.nodes} nodes fit: {counted}"

    def __str__(self) -> str:
        return self.message


def not_judged(nodes: int, error: Exception) -> Refusal:
    """Return the refusal of a request for which the policy raised."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Refusal(nodes, error=f"could not be judged: {said}")


def too_little(nodes: int) -> Refusal:
    """Return the refusal of a request for which no node has enough by the numbers, without a closer look."""
    return Refusal(nodes, (("have too little free", nodes),) if nodes else ())


_SINGULAR = {"have": "has", "are": "is", "offer": "offers", "lack": "lacks", "do": "does"}


def singular(text: str) -> str:
    """Return a reason in the singular: `have fewer …` becomes `has fewer …`."""
    verb, _, rest = text.partition(" ")
    return f"{_SINGULAR.get(verb, verb)} {rest}".strip()
