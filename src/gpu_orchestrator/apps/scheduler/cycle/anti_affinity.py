"""Required anti-affinity in use: which terms of other pods keep a pod away.

A term is in use from when one of our pods with it is queued, or any scheduler's pod with it is bound, until
the last such pod has ended. A pod of ours that matches it carries the term in its request.
"""

from itertools import chain, islice

from gpu_orchestrator.core.pod_rules import Neighbour, PodTerm

Label = tuple[str, str]

MOST_TERMS = 64
"""How many terms of others a request can carry. Each costs about a tenth of a millisecond per decision."""


class AntiAffinity:
    def __init__(self) -> None:
        self._users: dict[PodTerm, set[str]] = {}
        self._terms_of: dict[str, tuple[PodTerm, ...]] = {}
        self._by_label: dict[Label, dict[PodTerm, None]] = {}
        self._unlabelled: dict[PodTerm, None] = {}

    def __bool__(self) -> bool:
        return bool(self._users)

    def declare(self, uid: str, terms: tuple[PodTerm, ...]) -> list[PodTerm]:
        """Record the terms of a pod. Return those that no other pod had."""
        if terms == (before := self._terms_of.get(uid, ())):
            return []
        new = [term for term in dict.fromkeys(terms) if term not in self._users]
        for term in new:
            self._enter(term)
        for term in terms:
            self._users.setdefault(term, set()).add(uid)
        self._leave(uid, set(before) - set(terms))
        self._terms_of[uid] = terms
        if not terms:
            del self._terms_of[uid]
        return new

    def withdraw(self, uid: str) -> bool:
        """Remove the terms of a pod that has ended. Return True if any of them is not in use any longer."""
        before = len(self._users)
        self._leave(uid, set(self._terms_of.pop(uid, ())))
        return len(self._users) < before

    def against(self, pod: Neighbour) -> tuple[PodTerm, ...]:
        """Return the terms in use that match this pod, always in the same order; of too many, one more than
        `MOST_TERMS`."""
        if not self._users:
            return ()
        found = chain.from_iterable(self._by_label.get(label, ()) for label in pod.labels.items())
        matching = (term for term in chain(found, self._unlabelled) if term.pods.matches(pod))
        return tuple(sorted(islice(matching, MOST_TERMS + 1), key=repr))

    def _leave(self, uid: str, terms: set[PodTerm]) -> None:
        for term in terms:
            self._users[term].discard(uid)
            if not self._users[term]:
                del self._users[term]
                self._unlabelled.pop(term, None)
                for label in _labels_of(term):
                    self._forget(label, term)

    def _enter(self, term: PodTerm) -> None:
        """List a term by labels of which a matching pod must have one, if there are such."""
        labels = _labels_of(term)
        for label in labels:
            self._by_label.setdefault(label, {})[term] = None
        if not labels:
            self._unlabelled[term] = None

    def _forget(self, label: Label, term: PodTerm) -> None:
        self._by_label[label].pop(term, None)
        if not self._by_label[label]:
            del self._by_label[label]


def _labels_of(term: PodTerm) -> list[Label]:
    expression = next((each for each in term.pods.labels if each.operator == "In"), None)
    return [(expression.key, value) for value in expression.values] if expression else []
