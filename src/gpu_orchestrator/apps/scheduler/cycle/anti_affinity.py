"""Required anti-affinity in use: which terms of other pods keep a pod away.

A term is in use from when one of our pods with it is queued, or any scheduler's pod with it is bound, until
the last such pod has ended. A pod of ours that matches it carries the term in its request. What one namespace
can ask of the others, and of its own pods, is limited: nobody can hold up the scheduler with a crowd of
terms. Pods that share their terms are never limited.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Literal, TypeVar

from gpu_orchestrator.core.pod_rules import Neighbour, PodTerm

T = TypeVar("T")

Label = tuple[str, str]
Place = tuple[str | None, Label | None]
"""A namespace (None: any) and a label (None: any) of the pods that a term can match."""

Lack = Literal["", "reaching", "near"]
"""Which terms there is no room for: those that reach other namespaces, those on pods of the own one, none."""

MOST_TERMS = 64
"""How many terms of others a request can carry, and how many different ones the pods of a namespace can have
on the same pods of it. Each costs about a tenth of a millisecond per decision."""

MOST_REACHING = 8
"""How many different terms of one namespace's pods count for other namespaces."""


@dataclass(slots=True)
class Use:
    """Since when a term is in use, where it is listed, and the UIDs of the pods that have it, by
    namespace."""

    age: int
    places: list[Place] = field(default_factory=list)
    users: dict[str, set[str]] = field(default_factory=dict)


class AntiAffinity:
    """`departures` counts how often a namespace stopped to use a term: then there may be room for others."""

    def __init__(self) -> None:
        self.departures = 0
        self._ages = count()
        self._in_use: dict[PodTerm, Use] = {}
        self._terms_of: dict[str, tuple[PodTerm, ...]] = {}
        self._reaching: dict[str, set[PodTerm]] = {}
        self._near: dict[Place, set[PodTerm]] = {}
        """By place: the terms that pods of its namespace have on pods of the same namespace."""
        self._places: dict[Place, dict[PodTerm, None]] = {}

    def __len__(self) -> int:
        return len(self._in_use)

    def lack(self, pod: Neighbour) -> Lack:
        """Return which terms of a pod that asks to be queued have no room. Terms that its namespace uses
        already need none."""
        new = self._unused(pod)
        reaching = sum(_reaches_others(term, pod.namespace) for term in new)
        if reaching > self._reach_left(pod.namespace):
            return "reaching"
        near = [term for term in new if not _reaches_others(term, pod.namespace)]
        if not all(self._has_place(term, len(near)) for term in near):
            return "near"
        return "near" if near and self._count_near(pod, near) > MOST_TERMS else ""

    def lacks_any(self, pod: Neighbour) -> bool:
        """Return True if a bound pod has terms that are not in use."""
        return bool(self._unused(pod))

    def can_take(self, pod: Neighbour) -> bool:
        """Return True if a term of a bound pod that was not in use can be now, or if others use all of
        them."""
        unused = self._unused(pod)
        return not unused or any(self._fits(term, pod.namespace) for term in unused)

    def declare(self, uid: str, namespace: str, terms: tuple[PodTerm, ...]) -> list[PodTerm]:
        """Record the terms of a pod, as far as there is room for them. Return the recorded ones that no other
        pod had."""
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
        found = [term for term in dict.fromkeys((*self._listed(pod), *own)) if term.pods.matches(pod)]
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

    def _listed(self, pod: Neighbour) -> Iterable[PodTerm]:
        """Yield the terms at the places of this pod."""
        labels = (*pod.labels.items(), None)
        places = ((area, label) for area in (pod.namespace, None) for label in labels)
        return (term for place in places for term in self._places.get(place, ()))

    def _unused(self, pod: Neighbour) -> list[PodTerm]:
        """Return the pod's terms that its namespace does not use, and that can match any pod."""
        terms = (term for term in dict.fromkeys(pod.avoids) if _can_match(term))
        return [term for term in terms if not self._is_used_by(pod.namespace, term)]

    def _count_near(self, pod: Neighbour, new: list[PodTerm]) -> int:
        """Return how many terms on this pod its own namespace would have with these."""
        used = {term for term in self._listed(pod) if self._is_used_by(pod.namespace, term)}
        return sum(term.pods.matches(pod) for term in (*used, *new))

    def _fits(self, term: PodTerm, namespace: str) -> bool:
        """Return True if one more term of this namespace's pods has room."""
        if _reaches_others(term, namespace):
            return self._reach_left(namespace) > 0
        return self._has_place(term, 1)

    def _reach_left(self, namespace: str) -> int:
        return MOST_REACHING - len(self._reaching.get(namespace, ()))

    def _has_place(self, term: PodTerm, new: int) -> bool:
        """Return True if this term and other new ones have room at the same place."""
        return self._crowd(self._emptiest(term)) + new <= MOST_TERMS

    def _crowd(self, places: list[Place]) -> int:
        return max(len(self._near.get(place, ())) for place in places)

    def _emptiest(self, term: PodTerm) -> list[Place]:
        """Return places of which a matching pod must have one. Of several conditions, take the one that tells
        the pods best apart from those of other terms: a hundred terms `app=train` and `run=…` are a hundred
        places."""
        return min(_places_of(term), key=self._crowd)

    def _take(self, uid: str, namespace: str, term: PodTerm) -> bool:
        """Record a term of a pod, unless it matches no pod at all or there is no room for it."""
        if not _can_match(term):
            return False
        if not self._is_used_by(namespace, term):
            if not self._fits(term, namespace):
                return False
            self._add(namespace, term)
        self._in_use[term].users.setdefault(namespace, set()).add(uid)
        return True

    def _add(self, namespace: str, term: PodTerm) -> None:
        """List a term that pods of this namespace did not have before."""
        reaches = _reaches_others(term, namespace)
        if (use := self._in_use.get(term)) is None:
            use = self._in_use[term] = Use(next(self._ages))
        elif not reaches:
            self._unlist(term, use)  # pods of other namespaces have it, too: its place did not count yet
        if not use.places:
            use.places = self._emptiest(term)
            for place in use.places:
                self._places.setdefault(place, {})[term] = None
        if reaches:
            self._reaching.setdefault(namespace, set()).add(term)
            return
        for place in use.places:
            self._near.setdefault(place, set()).add(term)

    def _leave(self, uid: str, namespace: str, terms: set[PodTerm]) -> None:
        for term in terms:
            use = self._in_use[term]
            use.users[namespace].discard(uid)
            if not use.users[namespace]:
                del use.users[namespace]
                self._forget_user(namespace, term, use)
            if not use.users:
                del self._in_use[term]
                self._unlist(term, use)

    def _forget_user(self, namespace: str, term: PodTerm, use: Use) -> None:
        self.departures += 1
        if _reaches_others(term, namespace):
            _drop(self._reaching, namespace, term)
            return
        for place in use.places:
            _drop(self._near, place, term)

    def _unlist(self, term: PodTerm, use: Use) -> None:
        for place in use.places:
            self._places[place].pop(term, None)
            if not self._places[place]:
                del self._places[place]
        use.places = []


def _drop(sets: dict[T, set[PodTerm]], key: T, term: PodTerm) -> None:
    """Remove a term from the set of this key, and an empty set."""
    sets[key].discard(term)
    if not sets[key]:
        del sets[key]


def _can_match(term: PodTerm) -> bool:
    """Return True unless the term selects no namespace."""
    return term.pods.namespaces is None or bool(term.pods.namespaces)


def _reaches_others(term: PodTerm, namespace: str) -> bool:
    names = term.pods.namespaces
    return names is None or any(name != namespace for name in names)


def _places_of(term: PodTerm) -> list[list[Place]]:
    """Return places of which a matching pod must have one, for each condition by which it can be found."""
    names = term.pods.namespaces
    area = next(iter(names)) if names is not None and len(names) == 1 else None
    conditions = [each for each in term.pods.labels if each.operator == "In" and each.values]
    found = [[(area, (each.key, value)) for value in dict.fromkeys(each.values)] for each in conditions]
    return [list[Place](each) for each in found] or [[(area, None)]]
