"""Turn pods' rules about other pods into the core's: affinity, anti-affinity and topology spread.

Namespaces selected by label become names here. A selector that is missing matches nothing, an empty one
everything.
"""

from typing import Any, Protocol, cast

from gpu_orchestrator.api import translate
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod import LabelSelector, PodAffinityTerm, TopologySpread
from gpu_orchestrator.core.pod_rules import NO_PODS, Neighbour, PodRules, PodSelector, PodTerm, Spread
from gpu_orchestrator.core.request import Expression

MOST_RULES = 8
"""How many rules about other pods one pod may have: each costs a decision about a tenth of a millisecond."""

MOST_NAMESPACES, MOST_EXPRESSIONS, MOST_VALUES = 64, 16, 64
"""How many namespaces a rule may name, how many conditions a selector of it may have, and how many values
each of these: a rule is compared with many pods."""


class Namespaces(Protocol):
    """Looks up namespaces."""

    def namespaces_with(self, labels: tuple[Expression, ...]) -> frozenset[str]:
        """Return the names of the namespaces that meet these conditions."""
        ...


def neighbour(pod: Pod, known: Namespaces) -> Neighbour:
    """Return what the rules of other pods see of this one. A pod that another scheduler has bound may have
    more anti-affinity than we allow; what is too much does not count."""
    meta, required = pod.metadata, pod.spec.affinity.pod_anti_affinity.required
    if not required:
        return Neighbour(meta.namespace, meta.labels, (), bool(meta.deletion_timestamp))
    counting = (each for each in required[:MOST_RULES] if not is_too_long(each))
    avoids = tuple(_term(each, pod, known) for each in counting)
    return Neighbour(meta.namespace, meta.labels, avoids, bool(meta.deletion_timestamp))


def rules(
    pod: Pod, itself: Neighbour, known: Namespaces, shunned_by: tuple[PodTerm, ...] = ()
) -> PodRules | None:
    """Return the pod's rules about others; None if it has none. `itself` is the pod as a neighbour, and
    `shunned_by` the terms of others that match it."""
    spec, required = pod.spec, pod.spec.affinity.pod_affinity.required
    if not (required or itself.avoids or spec.topology_spread_constraints or shunned_by):
        return None
    together = tuple(_term(each, pod, known) for each in required)
    spread = tuple(
        _spread(each, pod, itself)
        for each in spec.topology_spread_constraints
        if each.when_unsatisfiable != "ScheduleAnyway"
    )
    if not (together or itself.avoids or spread or shunned_by):
        return None
    may_be_first = all(term.pods.matches(itself) for term in together)
    return PodRules(together, bool(together) and may_be_first, itself.avoids, spread, shunned_by)


def selects_namespaces(pod: Pod) -> bool:
    """Return True if labels of namespaces decide what the pod's rules mean."""
    affinity = pod.spec.affinity
    terms = (*affinity.pod_affinity.required, *affinity.pod_anti_affinity.required)
    return any(term.namespace_selector is not None for term in terms)


def count_rules(pod: Pod) -> int:
    """Return how many rules about other pods the pod has."""
    affinity = pod.spec.affinity
    terms = len(affinity.pod_affinity.required) + len(affinity.pod_anti_affinity.required)
    return terms + len(pod.spec.topology_spread_constraints)


def has_too_long_rule(pod: Pod) -> bool:
    """Return True if a rule of the pod about others lists more than is allowed."""
    affinity, spread = pod.spec.affinity, pod.spec.topology_spread_constraints
    terms = (*affinity.pod_affinity.required, *affinity.pod_anti_affinity.required)
    return any(map(is_too_long, terms)) or any(is_long(each.label_selector) for each in spread)


def is_too_long(wire: PodAffinityTerm) -> bool:
    """Return True if the term lists more than is allowed."""
    selectors = wire.label_selector, wire.namespace_selector
    return len(wire.namespaces) > MOST_NAMESPACES or any(map(is_long, selectors))


def is_long(selector: LabelSelector | None) -> bool:
    if selector is None:
        return False
    expressions = selector.match_expressions
    return len(selector.match_labels) + len(expressions) > MOST_EXPRESSIONS or any(
        len(each.values) > MOST_VALUES for each in expressions
    )


def _term(wire: PodAffinityTerm, pod: Pod, known: Namespaces) -> PodTerm:
    if wire.label_selector is None:
        return PodTerm(wire.topology_key, NO_PODS)
    namespaces = _namespaces(wire, pod, known)
    return PodTerm(wire.topology_key, PodSelector(namespaces, conditions(wire.label_selector)))


def _namespaces(wire: PodAffinityTerm, pod: Pod, known: Namespaces) -> frozenset[str] | None:
    if (selector := wire.namespace_selector) is None:
        return frozenset(wire.namespaces or (pod.metadata.namespace,))
    if not (labels := conditions(selector)):
        return None
    selected = known.namespaces_with(labels)
    return selected.union(wire.namespaces) if wire.namespaces else selected


def _spread(wire: TopologySpread, pod: Pod, itself: Neighbour) -> Spread:
    pods, counts_itself = _spread_pods(wire, itself)
    spec, required = pod.spec, pod.spec.affinity.node_affinity.required
    honors = wire.node_affinity_policy != "Ignore"
    return Spread(
        wire.topology_key,
        pods,
        max_skew=wire.max_skew,
        min_domains=wire.min_domains,
        counts_itself=counts_itself,
        labels=tuple(sorted(spec.node_selector.items())) if honors else (),
        affinity=tuple(map(translate.term_of, required.node_selector_terms)) if honors and required else (),
        tolerations=translate.tolerations(spec) if wire.node_taints_policy == "Honor" else None,
    )


def _spread_pods(wire: TopologySpread, itself: Neighbour) -> tuple[PodSelector, bool]:
    """Return which pods a spread counts, and whether the pod itself is one of them. As in kube-scheduler, an
    empty selector matches the pod itself and counts no other."""
    if wire.label_selector is None:
        return NO_PODS, False
    own = {key: itself.labels[key] for key in wire.match_label_keys if key in itself.labels}
    labels = tuple(dict.fromkeys((*conditions(wire.label_selector), *_equal(own))))
    pods = PodSelector(frozenset({itself.namespace}), labels)
    return (pods, pods.matches(itself)) if labels else (NO_PODS, True)


def conditions(selector: LabelSelector) -> tuple[Expression, ...]:
    """Return the conditions of a selector, in the one form in which equal selectors are equal values."""
    expressions = (
        Expression(each.key, cast("Any", each.operator), tuple(sorted(each.values)))
        for each in selector.match_expressions
    )
    return (*_equal(selector.match_labels), *expressions)


def _equal(labels: dict[str, str]) -> tuple[Expression, ...]:
    return tuple(Expression(key, "In", (value,)) for key, value in sorted(labels.items()))
