"""How much of what a scheduler has to check on every node one pod may ask for.

Each of these costs a look at all nodes, so a pod that lists thousands would hold up everybody. Pods that
people write have fewer than ten of each. Called by the scheduler for a pod and by the operator for a pod
template, before either makes a request of it.
"""

from collections.abc import Iterator
from itertools import chain

from gpu_orchestrator.api.pod import NodeSelectorTerm, PodSpec

MOST_CONDITIONS = 64
"""On nodes: entries of the node selector, and of all node affinity terms."""

MOST_TERMS = 64
"""Of node affinity, required and preferred."""

MOST_VALUES = 512
"""Of all conditions together: a list of nodes may be long."""

MOST_TOLERATIONS = 64
MOST_HOST_PORTS = 64

MOST_CLAIMS = 64
"""Volumes that are claims; others, such as ConfigMaps, do not restrict where the pod can go."""


def excess(spec: PodSpec) -> str:
    """Return what the spec has too much of, how much is taken, and what to do; empty if nothing."""
    for what, count, most, advice in _counted(spec):
        if count > most:
            return f"{what}: {count} found, up to {most} are taken; {advice}"
    return ""


def _counted(spec: PodSpec) -> Iterator[tuple[str, int, int, str]]:
    entries, terms = len(spec.node_selector), _terms(spec)
    if entries or terms:
        yield "node affinity terms", len(terms), MOST_TERMS, "merge terms, or label the nodes you mean"
        conditions = [each for term in terms for each in chain(term.match_expressions, term.match_fields)]
        count = entries + len(conditions)
        named = "conditions on nodes (nodeSelector, node affinity)"
        yield named, count, MOST_CONDITIONS, "give the nodes you mean one label, and select that"
        values = sum(len(each.values) for each in conditions)
        yield "values in node affinity", values, MOST_VALUES, "give the nodes you mean one label"
    yield "tolerations", len(spec.tolerations), MOST_TOLERATIONS, "tolerate a key with operator Exists"
    containers = chain(spec.containers, spec.init_containers)
    ports = sum(bool(port.host_port) for container in containers for port in container.ports)
    yield "host ports", ports, MOST_HOST_PORTS, "use a Service, or hostNetwork without listing ports"
    claims = sum(bool(each.persistent_volume_claim or each.ephemeral) for each in spec.volumes)
    yield "volumes that are claims", claims, MOST_CLAIMS, "put the data on fewer volumes"


def _terms(spec: PodSpec) -> list[NodeSelectorTerm]:
    affinity = spec.affinity.node_affinity
    required = affinity.required.node_selector_terms if affinity.required else []
    return [*required, *(each.preference for each in affinity.preferred)]
