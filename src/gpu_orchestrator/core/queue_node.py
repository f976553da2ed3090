"""One queue of the tree: its budgets, what is used of them, and the words for it. And how the tree hangs
together, and what is wrong with it. Kept by `queues.py`."""

from collections.abc import Iterable, Mapping

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.queue_terms import ALL, Budget, QueueTerms, guarantee, least, limit, most, together

MOST_DEPTH = 8
"""Queues above each other. Each costs every placement below it."""
MOST_NAMED = 64
"""With more queues below it than this, it is not worth the time to say which of them borrow."""
NO_BUDGET = Budget(0.0, {}, 0.0)

Amounts = tuple[tuple[str, int], ...]
"""Milli-GPUs by model."""
Wish = tuple[int, tuple[str, ...]]
"""How many milli-GPUs are asked for, and the models that will do; none means all."""


class QueueNode:
    """One queue of the tree. `path` begins with itself and ends at the top. `kept` is what only those may use
    who wait for it, of all models and by model."""

    __slots__ = (
        "cap",
        "children",
        "guaranteed",
        "kept",
        "kept_by",
        "name",
        "path",
        "problem",
        "terms",
        "total",
        "used",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.terms: QueueTerms | None = None
        self.problem = ""
        self.path: tuple[QueueNode, ...] = (self,)
        self.children: list[QueueNode] = []
        self.guaranteed = self.cap = NO_BUDGET
        self.total, self.used = 0, dict[str, int]()
        self.kept, self.kept_by = 0, dict[str, int]()

    def keep(self, wish: Wish, sign: int) -> None:
        milli, models = wish
        self.kept += sign * milli
        for model in models:
            self.kept_by[model] = self.kept_by.get(model, 0) + sign * milli

    def is_full(self, milli: int) -> bool:
        """Return True if this much is more than it has left of all models together."""
        return self.total + self.kept + milli > self.cap.total

    def is_full_of(self, model: str, milli: int) -> bool:
        used = self.used.get(model, 0) + (self.kept_by.get(model, 0) if self.kept else 0)
        return used + milli > self.cap.of(model)

    def add(self, amounts: Amounts, sign: int) -> None:
        for model, milli in amounts:
            self.total += sign * milli
            self.used[model] = self.used.get(model, 0) + sign * milli

    def over(self, model: str) -> float:
        """Return how much must go before the use of this model is guaranteed; 0 or less if it is."""
        guaranteed = self.guaranteed
        return max(self.total - guaranteed.total, self.used.get(model, 0) - guaranteed.of(model))

    @property
    def borrowed(self) -> float:
        """Return how much of all models is used beyond what is guaranteed."""
        by_model = sum(max(milli - self.guaranteed.of(model), 0) for model, milli in self.used.items())
        return max(self.total - self.guaranteed.total, by_model, 0)

    @property
    def is_below(self) -> bool:
        """Return True if it uses less than it is guaranteed."""
        return self.total < self.guaranteed.total


def connect(nodes: Mapping[str, QueueNode]) -> None:
    """Find out which queues are above which, and what is wrong with them."""
    for node in nodes.values():
        node.children, node.path, node.problem = [], (node,), ""
    for node in nodes.values():
        node.path, wrong = _path(node, nodes)
        node.problem = f"queue {node.name}: {wrong}" if wrong else ""
        if len(node.path) > 1:
            node.path[1].children.append(node)


def _path(node: QueueNode, nodes: Mapping[str, QueueNode]) -> tuple[tuple[QueueNode, ...], str]:
    """Return the queue and those above it, or the queue alone and what is wrong with any of these."""
    path, at, wrong = [node], node, ""
    while True:
        if at.terms is None:
            return (node,), "does not exist" if at is node else f"queue {at.name} above it does not exist"
        if at.terms.problem:
            wrong = wrong or (at.terms.problem if at is node else f"queue {at.name} {at.terms.problem}")
        if not at.terms.parent:
            break
        parent = nodes.get(at.terms.parent)
        if parent is None:
            return (node,), f"queue {at.terms.parent} above it does not exist"
        if parent in path:
            return (node,), "the queues above it form a circle"
        path.append(parent)
        at = parent
        if len(path) > MOST_DEPTH:
            return (node,), f"more than {MOST_DEPTH} queues are above each other"
    return tuple(path), wrong


def set_budgets(node: QueueNode) -> None:
    """Work out what a queue is guaranteed and may use; those below it are done."""
    terms = node.terms
    if terms is None or node.problem:
        node.guaranteed = node.cap = NO_BUDGET
        return
    below = NO_BUDGET
    for child in node.children:
        below = together(below, child.guaranteed)
    limited = limit(terms.limit)
    node.guaranteed = least(most(guarantee(terms.guaranteed), below), limited)
    node.cap = limited if terms.borrowing else least(limited, node.guaranteed)


def said(node: QueueNode, model: str, milli: int, asking: QueueNode) -> str:
    """Return why a queue has no room for this much, for one below it or for itself."""
    cap = node.cap.total if model == ALL else node.cap.of(model)
    used = node.total if model == ALL else node.used.get(model, 0)
    what = "GPUs" if model == ALL else model
    if milli > cap:
        return f"queue {node.name}: {gpus(milli)} {what} asked for, and it may use {gpus(cap)} at most"
    of = "guaranteed " if node.terms is not None and not node.terms.borrowing else ""
    text = f"queue {node.name}: {gpus(used)} of {gpus(cap)} {of}{what} used"
    if used + milli <= cap:
        return f"{text}, {gpus(node.kept)} kept for one that waits longer"
    if len(node.children) > MOST_NAMED:
        return text
    return text + borrowers(each for each in node.children if each not in asking.path)


def borrowers(nodes: Iterable[QueueNode]) -> str:
    """Return who of these borrows how much, in words; the most first."""
    found = sorted((-each.borrowed, each.name) for each in nodes if each.borrowed)
    if not found:
        return ""
    (most_borrowed, name), others = found[0], found[1:]
    more = f", {gpus(-sum(each for each, _ in others))} by others" if others else ""
    return f", {gpus(-most_borrowed)} borrowed by {name}{more}"


def gpus(milli: float) -> str:
    return f"{milli / WHOLE:g}"
