"""Required anti-affinity in use: which terms of other pods keep a pod away.

A term is in use from when one of our pods with it is queued, or any scheduler's pod with it is bound, until
the last such pod has ended. A pod of ours that matches it carries the term in its request. What one namespace
can ask of the others is limited: nobody can hold up their pods with a crowd of terms.
"""

from dataclasses import dataclass, field
from itertools import count
from math import inf

from gpu_orchestrator.core.pod_rules import Neighbour, PodTerm

Label = tuple[str, str]
Place = tuple[str | None, Label | None]
"""A namespace (None: any) and a label (None: any) of the pods that a term can match."""

MOST_TERMS = 64
"""How many terms of others a request can carry. Each costs about a tenth of a millisecond per decision."""

MOST_REACHING = 8
"""How many different terms of one namespace's pods count for other namespaces."""


@dataclass(slots=True)
class Use:
    """Since when a term is in use, and the UIDs of the pods that have it, by namespace."""

    age: int
    users: dict[str, set[str]] = field(default_factory=dict)


class AntiAffinity:
    def __init__(self) -> None:
        self._ages = count()
        self._in_use: dict[PodTerm, Use] = {}
        self._terms_of: dict[str, tuple[PodTerm, ...]] = {}
        self._reaching: dict[str, set[PodTerm]] = {}
        self._places: dict[Place, dict[PodTerm, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._in_use)

    def room(self, namespace: str) -> int:
        """Return how many more terms of this namespace's pods may reach other namespaces."""
        return MOST_REACHING - len(self._reaching.get(namespace, ()))

    def has_room(self, namespace: str, terms: tuple[PodTerm, ...]) -> bool:
        """Return True if all these terms of a pod of this namespace can be in use."""
        known = self._reaching.get(namespace, set())
        new = {term for term in terms if _reaches_others(term, namespace)} - known
        return len(new) <= self.room(namespace)

    def declare(self, uid: str, namespace: str, terms: tuple[PodTerm, ...]) -> list[PodTerm]:
        """Record the terms of a pod; those that reach other namespaces only while there is room. Return the
        recorded ones that no other pod had."""
        before = self._terms_of.get(uid, ())
        if terms == before:
            return []
        self._leave(uid, namespace, set(before) - set(terms))
        new = [term for term in dict.fromkeys(terms) if term not in self._in_use]
        taken = tuple(term for term in dict.fromkeys(terms) if self._take(uid, namespace, term))
        self._terms_of[uid] = taken
        if not taken:
            del self._terms_of[uid]
        return [term for term in new if term in self._in_use]

    def withdraw(self, uid: str, namespace: str) -> None:
        """Remove the terms of a pod that has ended, or that is not to be scheduled."""
        self._leave(uid, namespace, set(self._terms_of.pop(uid, ())))

    def against(self, pod: Neighbour, own: tuple[PodTerm, ...] = ()) -> tuple[PodTerm, ...]:
        """Return the terms in use that match this pod, the oldest first. `own` are the pod's terms, in use or
        not yet. Of more than `MOST_TERMS`, those that pods of its own namespace have go first."""
        labels = (*pod.labels.items(), None)
        places = ((area, label) for area in (pod.namespace, None) for label in labels)
        listed = [term for place in places for term in self._places.get(place, ())]
        found = [term for term in dict.fromkeys((*listed, *own)) if term.pods.matches(pod)]
        found.sort(key=self._age)
        if len(found) > MOST_TERMS:
            found.sort(key=lambda term: not self._is_used_by(pod.namespace, term) and term not in own)
        return tuple(found[:MOST_TERMS])

    def _age(self, term: PodTerm) -> float:
        use = self._in_use.get(term)
        return use.age if use else inf

    def _is_used_by(self, namespace: str, term: PodTerm) -> bool:
        use = self._in_use.get(term)
        return use is not None and namespace in use.users

    def _take(self, uid: str, namespace: str, term: PodTerm) -> bool:
        """Record a term of a pod, unless it matches no pod at all or there is no room for it."""
        if term.pods.namespaces is not None and not term.pods.namespaces:
            return False
        if _reaches_others(term, namespace):
            reaching = self._reaching.get(namespace, set())
            if term not in reaching and len(reaching) >= MOST_REACHING:
                return False
            self._reaching.setdefault(namespace, reaching).add(term)
        if (use := self._in_use.get(term)) is None:
            use = self._in_use[term] = Use(next(self._ages))
            for place in _places_of(term):
                self._places.setdefault(place, {})[term] = None
        use.users.setdefault(namespace, set()).add(uid)
        return True

    def _leave(self, uid: str, namespace: str, terms: set[PodTerm]) -> None:
        for term in terms:
            use = self._in_use[term]
            use.users[namespace].discard(uid)
            if not use.users[namespace]:
                del use.users[namespace]
                self._forget_reach(namespace, term)
            if not use.users:
                del self._in_use[term]
                for place in _places_of(term):
                    self._forget(place, term)

    def _forget_reach(self, namespace: str, term: PodTerm) -> None:
        if (reaching := self._reaching.get(namespace)) is not None:
            reaching.discard(term)
            if not reaching:
                del self._reaching[namespace]

    def _forget(self, place: Place, term: PodTerm) -> None:
        self._places[place].pop(term, None)
        if not self._places[place]:
            del self._places[place]


def _reaches_others(term: PodTerm, namespace: str) -> bool:
    names = term.pods.namespaces
    return names is None or any(name != namespace for name in names)


def _places_of(term: PodTerm) -> list[Place]:
    """Return places of which a matching pod must have one."""
    names = term.pods.namespaces
    area = next(iter(names)) if names is not None and len(names) == 1 else None
    expression = next((each for each in term.pods.labels if each.operator == "In"), None)
    if expression is None:
        return [(area, None)]
    return [(area, (expression.key, value)) for value in dict.fromkeys(expression.values)]
