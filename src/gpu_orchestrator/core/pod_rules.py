"""Rules about the other pods of a domain: which pods are meant, and what a request asks of them.

A domain is all nodes with the same value of one label (its topology key): a host, a rack, a zone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpu_orchestrator.core.request import Expression, Term, Toleration


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A pod on a node, as the rules of other pods see it. `avoids` are its own terms that keep other pods
    away. `leaving`: it is being deleted."""

    namespace: str
    labels: Mapping[str, str]
    avoids: tuple["PodTerm", ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods of these namespaces (None: of all) whose labels meet all conditions. `namespaces` must be fast to
    look up if there are many."""

    namespaces: Collection[str] | None = None
    labels: tuple[Expression, ...] = ()

    def matches(self, pod: Neighbour) -> bool:
        if self.namespaces is not None and pod.namespace not in self.namespaces:
            return False
        return all(each.holds(pod.labels.get(each.key)) for each in self.labels)

    def __str__(self) -> str:
        return " and ".join(map(_words, self.labels)) or "any pod"


NO_PODS = PodSelector(namespaces=frozenset())


def _words(expression: Expression) -> str:
    key, values = expression.key, ",".join(expression.values)
    match expression.operator:
        case "In":
            return f"{key}={values}"
        case "NotIn":
            return f"{key}!={values}"
        case "Exists":
            return key
        case _:
            return f"!{key}"


@dataclass(frozen=True, slots=True)
class PodTerm:
    """The pods that a required (anti-)affinity means, and over which domains."""

    topology_key: str
    pods: PodSelector


@dataclass(frozen=True, slots=True)
class Spread:
    """At most `max_skew` more matching pods in a domain than in the one with the fewest; with fewer than
    `min_domains` domains, the fewest count as 0. `counts_itself`: the request itself matches. Domains are
    made of the nodes that match `labels` and `affinity`, and whose taints `tolerations` (unless None)
    tolerate."""

    topology_key: str
    pods: PodSelector
    max_skew: int = 1
    min_domains: int = 1
    counts_itself: bool = True
    labels: tuple[tuple[str, str], ...] = ()
    affinity: tuple[Term, ...] = ()
    tolerations: tuple[Toleration, ...] | None = None


@dataclass(frozen=True, slots=True)
class PodRules:
    """`together`: a pod that matches all terms must be in each term's domain; where there is none at all,
    a request that matches them itself (`may_be_first`) goes anywhere. `apart`: no matching pod may be in the
    domain. `shunned_by`: terms of other pods that match the request; it must keep out of their domains."""

    together: tuple[PodTerm, ...] = ()
    may_be_first: bool = False
    apart: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    shunned_by: tuple[PodTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class AllOf:
    """Pods that match every one of these selectors."""

    selectors: tuple[PodSelector, ...]

    def matches(self, pod: Neighbour) -> bool:
        return all(each.matches(pod) for each in self.selectors)


@dataclass(frozen=True, slots=True)
class Staying:
    """Pods that match and are not being deleted."""

    pods: PodSelector

    def matches(self, pod: Neighbour) -> bool:
        return not pod.leaving and self.pods.matches(pod)


@dataclass(frozen=True, slots=True)
class Avoiding:
    """Pods that have this term as their own anti-affinity."""

    term: PodTerm

    def matches(self, pod: Neighbour) -> bool:
        return self.term in pod.avoids


Matcher = PodSelector | AllOf | Staying | Avoiding


def matchers(rules: PodRules) -> tuple[Matcher, ...]:
    """Return what must be counted to check these rules."""
    together = (AllOf(tuple(term.pods for term in rules.together)),) if rules.together else ()
    return (
        *together,
        *(term.pods for term in rules.apart),
        *(Staying(each.pods) for each in rules.spread),
        *(Avoiding(term) for term in rules.shunned_by),
    )


def namespaces_of(kind: Matcher) -> Collection[str] | None:
    """Return the namespaces in which matching pods can be; None if in all."""
    match kind:
        case PodSelector():
            return kind.namespaces
        case Staying():
            return kind.pods.namespaces
        case AllOf():
            return next((each.namespaces for each in kind.selectors if each.namespaces is not None), None)
        case Avoiding():
            return None
