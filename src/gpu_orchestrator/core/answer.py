"""What `decide` answers: a placement, or a refusal that can explain itself.

A placement says all that is needed to take the same from a cluster again, so it can be rebuilt from what is
written on a pod or a lease after a restart.
"""

from dataclasses import dataclass

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.request import HostPort


@dataclass(frozen=True, slots=True)
class Placement:
    """`devices` are ids. `unnamed` counts whole GPUs of which only the number is known (a device plugin's);
    the cluster stands in devices of its own choice for them."""

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
    says that no node of this cluster could take the request even when empty, ready and healthy. `error` is
    what kept anybody from looking: a policy that broke, or that nobody knows."""

    nodes: int
    reasons: tuple[tuple[str, int], ...] = ()
    nearest: Miss | None = None
    never: bool = False
    error: str = ""

    @property
    def message(self) -> str:
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


_SINGULAR = {"have": "has", "are": "is", "offer": "offers", "lack": "lacks", "do": "does"}


def singular(text: str) -> str:
    """A reason as it is said of one node: `have fewer …` becomes `has fewer …`."""
    verb, _, rest = text.partition(" ")
    return f"{_SINGULAR.get(verb, verb)} {rest}".strip()
