"""What is requested: how many devices of what kind, on what sort of node, with what else.

A `Shape` is everything that decides where a request fits; requests with equal shapes are interchangeable to
the cluster, so answers are cached per shape. The rest of a `Request` is whose it is and how urgent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_NUMBER

if TYPE_CHECKING:
    from gpu_orchestrator.core.pod_rules import Neighbour, PodRules

MOST_COMPARED = 2**63 - 1
"""Of a label's value that a condition compares as a number."""
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
Mode = Literal["Required", "Preferred", "Ignore"]


@dataclass(frozen=True, slots=True)
class Expression:
    """One condition on a label (or, in `Term.fields`, on `metadata.name`), with Kubernetes' meaning."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, value: str | None) -> bool:
        """Return True if a label with this value meets the condition; None if there is no such label. For
        many nodes at once, `filters/nodes.py` does the same with columns."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return value is not None and self._compares(value)

    def _compares(self, value: str) -> bool:
        """Compare 64-bit integers only, as Kubernetes does; any other value does not match, and nothing
        meets an operator that only a newer server knows."""
        try:
            bound, number = int(self.values[0]), int(value)
        except (IndexError, ValueError):
            return False
        if max(abs(bound), abs(number)) > MOST_COMPARED:
            return False
        return number > bound if self.operator == "Gt" else self.operator == "Lt" and number < bound


@dataclass(frozen=True, slots=True)
class Term:
    """All conditions must hold; a term without any matches nothing. A request's terms are alternatives."""

    labels: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty key with `Exists` tolerates every taint; an empty effect means every effect."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - how Kubernetes writes it


@dataclass(frozen=True, slots=True)
class HostPort:
    port: int
    protocol: str = "TCP"
    ip: str = EVERY_ADDRESS

    def clashes(self, other: "HostPort") -> bool:
        same = self.port == other.port and self.protocol == other.protocol
        return same and (self.ip == other.ip or EVERY_ADDRESS in (self.ip, other.ip))


@dataclass(frozen=True, slots=True)
class Fabric:
    """What the node's network and storage must support."""

    rdma: bool = False
    min_ports: int = 0
    cufile: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that decides where a request fits.

    Exclusive: `gpus` wholly free devices, each with at least `memory_mib`; with `profile`, free slices of
    that profile (MIG). Shared: of each of `gpus` devices, `milli` thousandths and `memory_mib` of memory.
    `models` empty means any model. `preferred` terms have
    weights; they refuse no node. `volumes` are attached to the node, each by its driver and handle. `reach`
    says where volumes can be mounted: lists of terms, of each of which one must hold. `model` is what runs
    there: a copy of it that is loaded already is preferred, and refuses no node. `within` is a label, key and
    value, that the nodes of a gang need: only `core/gang.py` sets it.
    """

    gpus: int = 1
    exclusive: bool = True
    milli: int = WHOLE
    memory_mib: int = 0
    vendor: str = ""
    profile: str = ""
    models: tuple[str, ...] = ()
    prefer_ids: tuple[int, ...] = ()
    mode: Mode = "Preferred"
    min_bandwidth_gbps: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] = ()
    reach: tuple[tuple[Term, ...], ...] = ()
    preferred: tuple[tuple[int, Term], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    fabric: Fabric = Fabric()
    volumes: tuple[tuple[str, str], ...] = ()
    rules: "PodRules | None" = None
    model: str = ""
    within: tuple[str, str] | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self)
        object.__setattr__(self, "_hash", hash(_compared(self)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def needs_bandwidth(self) -> bool:
        """True if nodes are refused for slow links."""
        return self.mode == "Required" and self.min_bandwidth_gbps > 0 and self.gpus > 1

    @property
    def whole_gpus(self) -> int:
        """How many wholly free GPUs a node must have at least."""
        return self.gpus if self.exclusive and not self.profile else 0

    @property
    def asked_gbps(self) -> int:
        return 0 if self.mode == "Ignore" else self.min_bandwidth_gbps


_compared = attrgetter(*(name for name in Shape.__dataclass_fields__ if name != "_hash"))


@dataclass(frozen=True, slots=True)
class GangTerms:
    """What a member says of its gang: `least` members must start together, the others start with them where
    there is room, or later. `domain` is the key of a node label of which all members need the same value,
    `near` that of one of which they should have it."""

    name: str
    least: int = 1
    domain: str = ""
    near: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """`key` identifies the request for good (a pod's UID, a task's id). Strategy and allocator are names;
    empty means the default. `neighbour` is what other pods' rules see of it. A member of a gang has its
    terms; all members should have the same. `queue` is the one whose quota it counts against; empty means
    none. `run_s` is how long it runs at most; 0 if that is not declared."""

    key: str
    shape: Shape
    priority: int = 0
    tenant: str = ""
    strategy: str = ""
    allocator: str = ""
    neighbour: "Neighbour | None" = field(default=None, hash=False)
    gang: GangTerms | None = None
    queue: str = ""
    run_s: float = 0.0


def request(
    key: str,
    gpus: int = 1,
    *,
    share: int | None = None,
    memory_mib: int = 0,
    shared: bool | None = None,
    resources: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    priority: int = 0,
    tenant: str = "",
    strategy: str = "",
    allocator: str = "",
    neighbour: "Neighbour | None" = None,
    gang: GangTerms | None = None,
    queue: str = "",
    run_s: float = 0.0,
    **shape: Any,
) -> Request:
    """Build a request. A `share` (or `shared=True` with memory alone) makes it Shared, otherwise it is
    Exclusive."""
    is_shared = share is not None if shared is None else shared
    asked = Shape(
        gpus=gpus,
        exclusive=not is_shared,
        milli=(share or 0) if is_shared else WHOLE,
        memory_mib=memory_mib,
        resources=pairs(resources or {}),
        labels=tuple(sorted((labels or {}).items())),
        **shape,
    )
    return Request(key, asked, priority, tenant, strategy, allocator, neighbour, gang, queue, run_s)


def pairs(amounts: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return resources in the one form in which equal requests are equal values: sorted, without zeroes."""
    return tuple(sorted((name, amount) for name, amount in dict(amounts).items() if amount))


def _check(shape: Shape) -> None:
    if shape.gpus < 0:
        raise InvalidRequest(f"{shape.gpus} GPUs were asked for; ask for 0 or more")
    if max(shape.gpus, shape.memory_mib, shape.min_bandwidth_gbps, shape.fabric.min_ports) > MOST_NUMBER:
        raise InvalidRequest(
            f"{shape.gpus} GPUs with {shape.memory_mib} MiB, {shape.min_bandwidth_gbps} GB/s and "
            f"{shape.fabric.min_ports} ports were asked for; each of these numbers ends at {MOST_NUMBER}"
        )
    if not shape.exclusive and not 0 <= shape.milli <= WHOLE:
        raise InvalidRequest(f"a share of {shape.milli} milli-GPU was asked for; a share is 1 to {WHOLE}")
    if not shape.exclusive and shape.gpus and not (shape.milli or shape.memory_mib):
        raise InvalidRequest(
            "a shared device was asked for without share or memory; give at least one of them"
        )
    if shape.profile and not shape.exclusive:
        raise InvalidRequest(f"a share of a slice ({shape.profile}) was asked for; a slice has one holder")
    if shape.memory_mib < 0 or shape.min_bandwidth_gbps < 0:
        raise InvalidRequest("memory and bandwidth cannot be negative")
    for name, amount in shape.resources:
        if amount < 0:
            raise InvalidRequest(f"{amount} of {name} was asked for; an amount cannot be negative")
        if amount >= MOST_AMOUNT:
            raise InvalidRequest(
                f"{MOST_AMOUNT} or more of {name} was asked for, which no node can have; ask for less"
            )
