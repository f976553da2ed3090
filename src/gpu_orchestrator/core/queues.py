"""Queues with quota, as a tree: what each uses, what it may still use, and why it may use no more.

Kept by the engine, which says what is placed and what is released. A queue may always be used as far as it
is guaranteed, further only if it borrows, and never beyond its limit; the same holds for all queues above
it. Amounts are milli-GPUs. A queue that makes no sense (unknown parent, circle, absurd numbers) raises
nothing: it admits nothing, and `problem` says why."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import LARGE_MIB, WHOLE, Device, profile_milli
from gpu_orchestrator.core.queue_node import (
    MOST_DEPTH,
    Amounts,
    QueueNode,
    Wish,
    connect,
    gpus,
    said,
    set_budgets,
)
from gpu_orchestrator.core.queue_terms import ALL, QueueTerms
from gpu_orchestrator.core.request import Shape

__all__ = [
    "MOST_DEPTH",
    "Amounts",
    "At",
    "Full",
    "QueueNode",
    "Queues",
    "Wish",
    "amounts_of",
    "gpus",
    "milli_of",
    "per_device",
]

MOST_DROPPED = 64
"""Queues that came to use less than they are guaranteed, and that are remembered by name."""
UNKNOWN = Device(-1)

At = tuple[str, str]
"""A queue and a model, `*` for all together: one budget."""


@dataclass(frozen=True, slots=True)
class Full:
    """A request may not start because of the budget of the queue `at`, for GPUs of this model."""

    at: str
    model: str
    message: str


class Queues:
    def __init__(self) -> None:
        self._nodes: dict[str, QueueNode] = {}
        self._held: dict[str, tuple[str, Amounts]] = {}
        self._kept: dict[str, tuple[str, Wish]] = {}
        self._is_settled = True
        self.version = 0
        """Changes whenever the answer of `judge` may have."""
        self.freed: set[At] = set()
        """Budgets of which something was let go; emptied by the caller."""
        self.backs = 0
        """How often a queue came to use less than it is guaranteed."""
        self._dropped: deque[str] = deque(maxlen=MOST_DROPPED)
        """Which ones did last; empty for any of them."""
        self.has_changed = False
        """True if all queues may have more room; set to False by the caller."""

    def __len__(self) -> int:
        return len(self._nodes)

    # --- the tree ----------------------------------------------------------------------------------------

    def update(self, terms: QueueTerms) -> bool:
        """Set what is declared of a queue; return False if that is known."""
        node = self._nodes.get(terms.name) or self._new(terms.name)
        if node.terms == terms:
            return False
        node.terms, self._is_settled = terms, False
        self._note_change()
        return True

    def remove(self, name: str) -> bool:
        """Forget a queue; what is used in it stays counted. Return False if it was not known."""
        node = self._nodes.get(name)
        if node is None or node.terms is None:
            return False
        node.terms, self._is_settled = None, False
        self._note_change()
        return True

    def _note_change(self) -> None:
        self.version += 1
        self.has_changed = True

    def _drops(self, name: str) -> None:
        self.backs += 1
        self._dropped.append(name)

    def dropped_since(self, backs: int) -> list[str] | None:
        """Return the queues that came to use less than they are guaranteed since then; None if that may be
        many, or if others are below one of them."""
        count = self.backs - backs
        if not 0 <= count <= len(self._dropped):
            return None
        names = list(self._dropped)[len(self._dropped) - count :]
        nodes = [self._nodes.get(name) for name in names]
        return None if any(node is None or node.children for node in nodes) else names

    def names(self) -> list[str]:
        """Return the queues that are declared."""
        return [name for name, node in self._nodes.items() if node.terms is not None]

    def node(self, name: str) -> QueueNode | None:
        self._settle()
        return self._nodes.get(name)

    def problem(self, name: str) -> str:
        """Return why this queue admits nothing, whatever is used; empty if it does."""
        node = self.node(name)
        return f"queue {name}: does not exist" if node is None else node.problem

    def top(self) -> list[QueueNode]:
        """Return the queues that have no parent."""
        self._settle()
        return [node for node in self._nodes.values() if node.terms is not None and len(node.path) == 1]

    # --- what is used ------------------------------------------------------------------------------------

    def take(self, key: str, queue: str, amounts: Amounts) -> None:
        """Count what this key holds; it replaces what it held before."""
        if self._held:
            self.let_go(key)
        if queue:
            self._held[key] = queue, amounts
            self._count(queue, amounts, 1)

    def let_go(self, key: str) -> str:
        """Stop counting what this key holds; return its queue, empty if it holds nothing in any."""
        if (held := self._held.pop(key, None)) is None:
            return ""
        self._count(*held, -1)
        return held[0]

    def queue_of(self, key: str) -> str:
        """Return the queue in which this key holds something."""
        return self.held(key)[0]

    def held(self, key: str) -> tuple[str, Amounts]:
        """Return the queue in which this key holds something, and what; empty if it holds nothing in any."""
        return self._held.get(key, ("", ()))

    def has_what_it_holds(self, key: str) -> bool:
        """Return True if no queue above what this key holds, or its own, uses more than it may."""
        queue, amounts = self.held(key)
        node = self.node(queue)
        return node is None or all(
            each.total <= each.cap.total
            and all(each.used.get(model, 0) <= each.cap.of(model) for model, _ in amounts)
            for each in node.path
        )

    def _count(self, queue: str, amounts: Amounts, sign: int) -> None:
        self.version += 1
        node = self._nodes.get(queue) or self._new(queue)
        if not self._is_settled:
            self._settle()  # counts all that is held now
        else:
            for each in node.path:
                was_below = each.is_below
                each.add(amounts, sign)
                if each.is_below and not was_below:
                    self._drops(each.name)
        if sign < 0:
            freed = (ALL, *(model for model, _ in amounts))
            self.freed.update([(each.name, model) for each in node.path for model in freed])

    # --- what is kept ------------------------------------------------------------------------------------

    def may_hold(self, queue: str, wish: Wish, known: Callable[[], Iterable[str]]) -> bool:
        """Return True if this much, of one of these models, may be used when nothing else is."""
        node, (milli, models) = self.node(queue), wish
        if node is None or node.problem or any(milli > each.cap.total for each in node.path):
            return False
        every = models or tuple(known())
        return not every or any(all(milli <= each.cap.of(model) for each in node.path) for model in every)

    def keep(self, key: str, queue: str, wish: Wish) -> None:
        """Let nobody use this much of a queue and those above it, or of these models, but who is judged
        `without` this key."""
        self.node(queue)
        self._kept[key] = queue, wish
        self.count_kept(queue, wish, 1)
        self.version += 1

    def keep_no_longer(self, key: str) -> None:
        self.node("")
        self.count_kept(*self._kept.pop(key), -1)
        self._note_change()

    def without(self, keys: Iterable[str]) -> "Without":
        """Do not count what is kept for these: `with queues.without(keys): ...`."""
        return Without(self, [self._kept[each] for each in keys])

    def count_kept(self, queue: str, wish: Wish, sign: int) -> None:
        """Count so much more of what is kept, in the queue and those above it."""
        node = self._nodes.get(queue)
        for each in node.path if node else ():
            each.keep(wish, sign)

    # --- what may start ----------------------------------------------------------------------------------

    def judge(
        self, queue: str, milli: int, models: tuple[str, ...], known: Callable[[], Iterable[str]]
    ) -> Full | tuple[str, ...] | None:
        """Return why no request for this much of any of these models may start, on which models it may, or
        None if on all of them. No `models` means all that are `known`."""
        found = self.judge_together(queue, ((milli, models),), known)
        return found if isinstance(found, Full) else found[0]

    def judge_together(
        self, queue: str, wishes: Sequence[Wish], known: Callable[[], Iterable[str]]
    ) -> Full | list[tuple[str, ...] | None]:
        """Do for each of several requests what `judge` does, if all of them are to start at once. Each model
        must have room for all that could use it."""
        node = self.node(queue)
        if node is None or node.problem:
            return Full(queue, ALL, node.problem if node else f"queue {queue}: does not exist")
        milli = sum(each for each, _ in wishes)
        has_models = False
        for each in node.path:
            if milli and each.is_full(milli):
                return Full(each.name, ALL, said(each, ALL, milli, node))
            has_models = has_models or each.cap.has_models
        return _narrowed(node, wishes, known) if milli and has_models else [None] * len(wishes)

    def full_at(
        self, queue: str, milli: int, models: tuple[str, ...], known: Callable[[], Iterable[str]]
    ) -> tuple[At, ...]:
        """Return the budgets that have no room for a request: unless something of one of them is let go, it
        may start on no more models than now."""
        node = self.node(queue)
        if node is None or node.problem:
            return ((queue, ALL),)
        above = next((each for each in node.path if each.is_full(milli)), None)
        if above is not None:
            return ((above.name, ALL),)
        found = ((_full_of(node, model, milli), model) for model in models or known())
        return tuple((full.name, model) for full, model in found if full is not None)

    def room(self, at: At) -> float:
        """Return how much more may be used of a budget."""
        name, model = at
        node = self.node(name)
        if node is None:
            return 0.0
        return node.cap.total - node.total if model == ALL else node.cap.of(model) - node.used.get(model, 0)

    def kept(self, at: At) -> int:
        """Return how much of a budget is kept for some."""
        name, model = at
        node = self.node(name)
        return 0 if node is None else node.kept if model == ALL else node.kept_by.get(model, 0)

    def _new(self, name: str) -> QueueNode:
        node = self._nodes[name] = QueueNode(name)
        self._is_settled = False
        return node

    def _settle(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._drops("")
            connect(self._nodes)
            self._drop_unused()
            for node in sorted(self._nodes.values(), key=lambda each: -len(each.path)):
                set_budgets(node)
                node.total, node.used = 0, {}
                node.kept, node.kept_by = 0, {}
            for queue, wish in self._kept.values():
                self.count_kept(queue, wish, 1)
            for queue, amounts in self._held.values():
                for each in self._nodes[queue].path:
                    each.add(amounts, 1)

    def _drop_unused(self) -> None:
        used = {queue for queue, _ in self._held.values()}
        for name, node in list(self._nodes.items()):
            if node.terms is None and name not in used:
                del self._nodes[name]


class Without:
    """Some of what is kept does not count meanwhile."""

    __slots__ = ("_kept", "_queues")

    def __init__(self, queues: Queues, kept: list[tuple[str, Wish]]) -> None:
        self._queues, self._kept = queues, kept

    def __enter__(self) -> None:
        if self._kept:
            self._queues.node("")  # what is counted is settled from here on
        for each in self._kept:
            self._queues.count_kept(*each, -1)

    def __exit__(self, *_: object) -> None:
        for each in self._kept:
            self._queues.count_kept(*each, 1)


def _narrowed(
    node: QueueNode, wishes: Sequence[Wish], known: Callable[[], Iterable[str]]
) -> Full | list[tuple[str, ...] | None]:
    every = tuple(known())
    wanted = dict[str, int]()
    for milli, models in wishes:
        for model in models or every:
            wanted[model] = wanted.get(model, 0) + milli
    full = {model: at for model, milli in wanted.items() if (at := _full_of(node, model, milli)) is not None}
    found: list[tuple[str, ...] | None] = []
    for milli, asked in wishes:
        models = asked or every
        may = tuple(each for each in models if each not in full) if milli else models
        if not may and models:
            return _no_model(node, models, wanted, full, is_any=not asked)
        found.append(None if len(may) == len(models) else may)
    return found


def _full_of(node: QueueNode, model: str, milli: int) -> QueueNode | None:
    return next((each for each in node.path if each.is_full_of(model, milli)), None)


def _no_model(
    node: QueueNode,
    models: tuple[str, ...],
    wanted: Mapping[str, int],
    full: Mapping[str, QueueNode],
    *,
    is_any: bool,
) -> Full:
    first = models[0]
    text = said(full[first], first, wanted[first], node)
    if is_any and len(models) > 1:
        return Full(full[first].name, ALL, f"{text}, and no more of any other model")
    return Full(full[first].name, first, text)


def milli_of(shape: Shape) -> int:
    """Return what a request of this shape counts: a slice by its profile, a part of a GPU by the larger of
    its share and its memory, whose real part is known only after placement."""
    if shape.profile:
        return shape.gpus * profile_milli(shape.profile)
    return shape.gpus * per_device(shape.milli, shape.memory_mib, exclusive=shape.exclusive)


def per_device(milli: int, memory_mib: int, *, exclusive: bool) -> int:
    if exclusive:
        return WHOLE
    return min(max(milli, -(-memory_mib * WHOLE // LARGE_MIB), 1), WHOLE)


def amounts_of(placement: Placement, devices: Mapping[int, Device], unnamed: str) -> Amounts:
    """Return what a placement counts. `devices` are those of the node by id, `unnamed` is the model of GPUs
    whose ids are not known."""
    each = per_device(placement.milli, placement.memory_mib, exclusive=placement.exclusive)
    counted: dict[str, int] = {}
    for number in placement.devices:
        device = devices.get(number, UNKNOWN)
        counted[device.model] = counted.get(device.model, 0) + min(each, device.milli)
    if placement.unnamed:
        counted[unnamed] = counted.get(unnamed, 0) + placement.unnamed * WHOLE
    return tuple(counted.items())
