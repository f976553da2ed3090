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

MOST_RULES = 32
"""How many rules about other pods one pod may have: each costs a decision about a tenth of a millisecond."""


class Namespaces(Protocol):
    """Looks up namespaces."""

    def namespaces_with(self, labels: tuple[Expression, ...]) -> tuple[str, ...]:
        """Return the names of the namespaces that meet these conditions, sorted."""
        ...


def neighbour(pod: Pod, known: Namespaces) -> Neighbour:
    """Return what the rules of other pods see of this one. A pod that another scheduler has bound may have
    more anti-affinity than we allow; what is too much does not count."""
    meta, required = pod.metadata, pod.spec.affinity.pod_anti_affinity.required
    avoids = tuple(_term(each, pod, known) for each in required[:MOST_RULES]) if required else ()
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


def _term(wire: PodAffinityTerm, pod: Pod, known: Namespaces) -> PodTerm:
    if wire.label_selector is None:
        return PodTerm(wire.topology_key, NO_PODS)
    namespaces = _namespaces(wire, pod, known)
    return PodTerm(wire.topology_key, PodSelector(namespaces, conditions(wire.label_selector)))


def _namespaces(wire: PodAffinityTerm, pod: Pod, known: Namespaces) -> tuple[str, ...] | None:
    if (selector := wire.namespace_selector) is None:
        return tuple(sorted(wire.namespaces)) or (pod.metadata.namespace,)
    labels = conditions(selector)
    return tuple(sorted({*wire.namespaces, *known.namespaces_with(labels)})) if labels else None


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
    pods = PodSelector((itself.namespace,), labels)
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
