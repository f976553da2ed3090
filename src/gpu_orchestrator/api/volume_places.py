"""Where all the claims of a pod can have their volumes at once, as alternatives of node affinity.

Pure; called by `first_consumer`. A volume that a node alone can reach names this node, so most combinations
of two volumes are impossible; those are never built. What remains is bounded, because every alternative is
compared with every node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.api.volumes import Alternatives
from gpu_orchestrator.core.request import Expression, Term

HOST = "kubernetes.io/hostname"
NAME = "metadata.name"

NOWHERE = Term()
"""A term without conditions matches nothing."""

MOST_PLACES, MOST_TERMS = 1024, 128
"""How many combinations of places are looked at, and how many alternatives one request may have. Neither
bounds volumes that one node alone can reach, if a claim has only such: these are one alternative."""


@dataclass(frozen=True, slots=True)
class Option:
    """A volume that a claim can get, and where; without a name, it is created. No `where` means anywhere;
    `host` is the label of the one node that reaches it, if that is all that `where` says."""

    where: Alternatives = ()
    volume: str = ""
    host: str = ""

    @property
    def is_everywhere(self) -> bool:
        """True if it can be created for every node."""
        return not self.where and not self.volume


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes on which the claims so far can be bound, with these volumes."""

    where: Term | None
    volumes: frozenset[str]

    @property
    def host(self) -> str:
        return _host(self.where) if self.where else ""


def joined(each_one: list[list[Option]]) -> Alternatives:
    """Return where every claim has one of its options, no volume twice. None at all means anywhere."""
    if len(each_one) == 1 and any(not option.where for option in each_one[0]):
        return ()
    if each_one and all(option.host for options in each_one for option in options):
        return _joined_hosts(each_one)
    places = [Place(None, frozenset())]
    for options in each_one:
        places = _extended(places, options)
    if any(place.where is None for place in places):
        return ()
    return _merged(place.where for place in places if place.where) or (NOWHERE,)


def _joined_hosts(each_one: list[list[Option]]) -> Alternatives:
    """Return the same for volumes each of which one node alone can reach."""
    used: dict[str, frozenset[str]] | None = None
    for options in each_one:
        now: dict[str, frozenset[str]] = {}
        for option in options:
            taken = frozenset[str]() if used is None else used.get(option.host)
            if taken is not None and option.host not in now and option.volume not in taken:
                now[option.host] = taken | {option.volume}
        used = now
    return (Term((Expression(HOST, "In", tuple(sorted(used))),)),) if used else (NOWHERE,)


def _extended(places: list[Place], options: list[Option]) -> list[Place]:
    """Combine every place with every option that is not plainly elsewhere."""
    on_host: dict[str, dict[Term | None, list[str]]] = {}
    for option in options:
        for term in option.where or (None,):
            if term != NOWHERE:
                alike = on_host.setdefault(_host(term) if term else "", {})
                alike.setdefault(term, []).append(option.volume)
    found: dict[Term | None, Place] = {}
    for place in places:
        hosts = list(dict.fromkeys((place.host, ""))) if place.host else list(on_host)
        for term, offered in ((t, o) for host in hosts for t, o in on_host.get(host, {}).items()):
            volume = next((each for each in offered if not each or each not in place.volumes), None)
            if volume is None:
                continue
            where = _both(place.where, term)
            found.setdefault(where, Place(where, place.volumes | {volume} if volume else place.volumes))
            if len(found) >= MOST_PLACES:
                return list(found.values())
    return list(found.values())


def _both(one: Term | None, other: Term | None) -> Term | None:
    if one is None or other is None or one == other:
        return one or other
    labels = tuple(dict.fromkeys((*one.labels, *other.labels)))
    return Term(labels, tuple(dict.fromkeys((*one.fields, *other.fields))))


def _host(term: Term) -> str:
    """Return the one node that a term names; empty if it names none, or several."""
    for each in (*term.labels, *term.fields):
        if each.key in (HOST, NAME) and each.operator == "In" and len(each.values) == 1:
            return each.values[0]
    return ""


def only_host(where: Alternatives) -> str:
    """Return the label of the one node that these alternatives match, if they say nothing else."""
    if len(where) != 1 or where[0].fields or len(where[0].labels) != 1 or where[0].labels[0].key != HOST:
        return ""
    return _host(where[0])


def _merged(terms: Iterable[Term]) -> Alternatives:
    """Return fewer terms with the same meaning: those with one condition `In` on the same label are one."""
    alike: dict[str, dict[str, None]] = {}
    others: dict[Term, None] = {}
    for term in terms:
        if len(term.labels) == 1 and not term.fields and term.labels[0].operator == "In":
            alike.setdefault(term.labels[0].key, {}).update(dict.fromkeys(term.labels[0].values))
        else:
            others[term] = None
    merged = [Term((Expression(key, "In", tuple(sorted(values))),)) for key, values in alike.items()]
    return tuple([*merged, *others][:MOST_TERMS])


def on_node(name: str) -> Term:
    """Return the term that matches the node with this name alone."""
    return Term(fields=(Expression(NAME, "In", (name,)),))


def is_on(node: Node, option: Option) -> bool:
    """Return True if the node can reach the volume."""
    if option.host:
        return node.metadata.labels.get(HOST) == option.host
    return holds_on(node, option.where)


def holds_on(node: Node, where: Alternatives) -> bool:
    """Return True if one of the alternatives matches the node, or if there is none."""
    return not where or any(_matches(term, node) for term in where)


def _matches(term: Term, node: Node) -> bool:
    labels, fields = node.metadata.labels, {NAME: node.metadata.name}
    return (
        term != NOWHERE
        and all(each.holds(labels.get(each.key)) for each in term.labels)
        and all(each.holds(fields.get(each.key)) for each in term.fields)
    )
