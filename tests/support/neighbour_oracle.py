"""Kubernetes' rules about other pods again, slow and simple, over manifests: tests compare the scheduler with
this. It shares no code with it.

Follows the documented meaning: https://kubernetes.io/docs/concepts/scheduling-eviction/ (assign-pod-node and
topology-spread-constraints).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass
class Site:
    """`placed` are pods with the name of their node; `namespaces` and `nodes` are labels by name."""

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    placed: dict[str, tuple[Json, str]] = field(default_factory=dict)

    def allows(self, pod: Json, node: str) -> bool:
        """Return whether the rules about other pods let this pod onto this node."""
        return (
            self._is_near(pod, node)
            and all(not self._domain(t, node, pod, pod) for t in terms(pod, "podAntiAffinity"))
            and not self._is_shunned(pod, node)
            and all(self._is_even(each, pod, node) for each in spreads(pod))
        )

    def _is_near(self, pod: Json, node: str) -> bool:
        wanted = terms(pod, "podAffinity")
        if any(term["topologyKey"] not in self.nodes[node] for term in wanted):
            return False
        matching = [
            where
            for other, where in self._others(pod)
            if all(self.matches(term, pod, other) for term in wanted)
        ]
        keys = [term["topologyKey"] for term in wanted]
        in_a_domain = [where for where in matching if any(key in self.nodes[where] for key in keys)]
        if not in_a_domain and all(self.matches(term, pod, pod) for term in wanted):
            return True
        return all(any(self._share(key, node, where) for where in matching) for key in keys)

    def _is_shunned(self, pod: Json, node: str) -> bool:
        return any(
            self.matches(term, other, pod) and self._share(term["topologyKey"], node, where)
            for other, where in self._others(pod)
            for term in terms(other, "podAntiAffinity")
        )

    def _domain(self, term: Json, node: str, owner: Json, pod: Json) -> list[Json]:
        """Return the other pods in the node's domain that a term means."""
        return [
            other
            for other, where in self._others(pod)
            if self.matches(term, owner, other) and self._share(term["topologyKey"], node, where)
        ]

    def _is_even(self, spread: Json, pod: Json, node: str) -> bool:
        key = spread["topologyKey"]
        if key not in self.nodes[node]:
            return False
        counts: dict[str, int] = {}
        keys = [each["topologyKey"] for each in spreads(pod)]
        for name, labels in self.nodes.items():
            if all(each in labels for each in keys) and self._is_counted(spread, pod, labels):
                found = sum(
                    where == name and counts_for(spread, pod, other) for other, where in self._others(pod)
                )
                counts[labels[key]] = counts.get(labels[key], 0) + found
        fewest = min(counts.values()) if counts and len(counts) >= spread.get("minDomains", 1) else 0
        itself = selector_matches(spread_selector(spread, pod), labels_of(pod))
        return counts.get(self.nodes[node][key], 0) + itself - fewest <= int(spread["maxSkew"])

    def _is_counted(self, spread: Json, pod: Json, labels: dict[str, str]) -> bool:
        if spread.get("nodeAffinityPolicy", "Honor") != "Honor":
            return True
        return bool(pod["spec"].get("nodeSelector", {}).items() <= labels.items())

    def _others(self, pod: Json) -> Iterable[tuple[Json, str]]:
        uid = pod["metadata"]["uid"]
        return [each for key, each in self.placed.items() if key != uid and each[1] in self.nodes]

    def _share(self, key: str, one: str, other: str) -> bool:
        value = self.nodes[one].get(key)
        return value is not None and value == self.nodes[other].get(key)

    def matches(self, term: Json, owner: Json, pod: Json) -> bool:
        """Return whether a term of one pod means another."""
        namespace, selector = pod["metadata"]["namespace"], term.get("namespaceSelector")
        listed = term.get("namespaces", [])
        if not listed and selector is None:
            listed = [owner["metadata"]["namespace"]]
        selected = selector is not None and selector_matches(selector, self.namespaces.get(namespace, {}))
        return (namespace in listed or selected) and selector_matches(
            term.get("labelSelector"), labels_of(pod)
        )


def terms(pod: Json, kind: str) -> list[Json]:
    return list(pod["spec"].get("affinity", {}).get(kind, {}).get(REQUIRED, []))


def spreads(pod: Json) -> list[Json]:
    every = pod["spec"].get("topologySpreadConstraints", [])
    return [each for each in every if each["whenUnsatisfiable"] == "DoNotSchedule"]


def counts_for(spread: Json, pod: Json, other: Json) -> bool:
    selector = spread_selector(spread, pod)
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    if (
        other["metadata"].get("deletionTimestamp")
        or other["metadata"]["namespace"] != pod["metadata"]["namespace"]
    ):
        return False
    return selector_matches(selector, labels_of(other))


def spread_selector(spread: Json, pod: Json) -> Json | None:
    selector = spread.get("labelSelector")
    if selector is None:
        return None
    own = {key: labels_of(pod)[key] for key in spread.get("matchLabelKeys", []) if key in labels_of(pod)}
    return {**selector, "matchLabels": {**selector.get("matchLabels", {}), **own}}


def labels_of(pod: Json) -> dict[str, str]:
    return dict(pod["metadata"].get("labels", {}))


def selector_matches(selector: Json | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    return all(_holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions", []))


def _holds(condition: Json, value: str | None) -> bool:
    match condition["operator"]:
        case "In":
            return value in condition["values"]
        case "NotIn":
            return value not in condition["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None
