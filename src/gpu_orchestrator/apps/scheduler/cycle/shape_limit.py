"""How many different shapes of one namespace wait in the engine at once. Kept by `pending`.

Equal requests wait together and cost one judgement; each different one costs its own. So a namespace may have
`most` different ones in the engine; the pods beyond are held back and come in as others leave, highest
priority first, then the earliest. Pods that ask like one that waits already come in at once, and so do all
members of a gang of which one waits: a gang that was let in by half would keep its place forever.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeVar

from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.engine.events import RequestAdded

K = TypeVar("K")

MOST_STALE = 64
"""So many entries of requests that are not held any more stay in a queue, or as many as it has others."""

Kind = tuple[Shape, str, str, GangTerms | None, str]
"""Shape, strategy, allocator, gang and queue: requests of one kind get the same answer."""


def kind_of(request: Request) -> Kind:
    return request.shape, request.strategy, request.allocator, request.gang, request.queue


def gang_of(kind: Kind) -> str:
    terms = kind[3]
    return terms.name if terms else ""


def _count(counts: dict[K, int], key: K, change: int) -> None:
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]


@dataclass(slots=True)
class _Namespace:
    """`waiting` counts the requests in the engine by kind, and `gangs` by gang; `held_of` has the kinds that
    are held back of each gang, none of which has a member in the engine; `queue` has entries of requests that
    have left `held` meanwhile, and `held_count` is how many it would have without them."""

    waiting: dict[Kind, int] = field(default_factory=dict)
    gangs: dict[str, int] = field(default_factory=dict)
    held: dict[Kind, dict[str, RequestAdded]] = field(default_factory=dict)
    held_of: dict[str, dict[Kind, None]] = field(default_factory=dict)
    queue: list[tuple[int, float, int, RequestAdded]] = field(default_factory=list)
    held_count: int = 0

    def holds(self, added: RequestAdded) -> bool:
        return self.held.get(kind_of(added.request), {}).get(added.request.key) is added

    def count(self, kind: Kind, change: int) -> None:
        """Count so many more requests of this kind in the engine."""
        _count(self.waiting, kind, change)
        if gang := gang_of(kind):
            _count(self.gangs, gang, change)

    def hold(self, kind: Kind, added: RequestAdded) -> None:
        self.held.setdefault(kind, {})[added.request.key] = added
        self.held_count += 1
        if gang := gang_of(kind):
            self.held_of.setdefault(gang, {})[kind] = None

    def let_go(self, kind: Kind, key: str) -> None:
        """A request that was held back is gone."""
        del self.held[kind][key]
        self.held_count -= 1
        if self.held[kind]:
            return
        del self.held[kind]
        if gang := gang_of(kind):
            del self.held_of[gang][kind]
            if not self.held_of[gang]:
                del self.held_of[gang]

    def take_held(self, kind: Kind) -> list[RequestAdded]:
        """Return the requests of this kind that are held back, and all others of its gang; they are held no
        longer."""
        gang = gang_of(kind)
        kinds = self.held_of.pop(gang) if gang else {kind: None}
        taken = [each for alike in kinds for each in self.held.pop(alike).values()]
        self.held_count -= len(taken)
        return taken

    def drop_stale(self) -> None:
        """Drop stale entries when there are many: a held pod that changes again and again makes one each
        time."""
        if len(self.queue) > MOST_STALE + 2 * self.held_count:
            self.queue = [entry for entry in self.queue if self.holds(entry[3])]
            heapify(self.queue)


class ShapeLimit:
    def __init__(self, most: int) -> None:
        self.most = most
        self._namespaces: dict[str, _Namespace] = {}
        self._known: dict[str, RequestAdded] = {}
        self._numbers = count()

    @property
    def held_count(self) -> int:
        """Return how many requests are held back, of all namespaces."""
        return sum(each.held_count for each in self._namespaces.values())

    def request_of(self, key: str) -> Request | None:
        """Return the request with this key, be it in the engine or held back."""
        added = self._known.get(key)
        return added.request if added else None

    def enter(self, added: RequestAdded) -> bool:
        """Return True if the request may wait in the engine now; False if it is held back. A request that has
        changed must leave before."""
        request, kind = added.request, kind_of(added.request)
        if request.key in self._known:
            return not self._is_held(request.key)
        here = self._namespaces.setdefault(request.tenant, _Namespace())
        self._known[request.key] = added
        gang = gang_of(kind)
        if kind in here.waiting or (gang and gang in here.gangs) or len(here.waiting) < self.most:
            here.count(kind, 1)
            return True
        here.hold(kind, added)
        heappush(here.queue, (-request.priority, added.since or 0.0, next(self._numbers), added))
        here.drop_stale()
        return False

    def leave(self, key: str) -> list[RequestAdded]:
        """Take a request out. Return those that come in for it, in order; all of one kind come in
        together."""
        added = self._known.pop(key, None)
        if added is None:
            return []
        here, kind = self._namespaces[added.request.tenant], kind_of(added.request)
        if key in here.held.get(kind, ()):
            here.let_go(kind, key)
            return []
        here.count(kind, -1)
        coming = self._let_in(here)
        if not here.waiting:
            del self._namespaces[added.request.tenant]
        return coming

    def _is_held(self, key: str) -> bool:
        request = self._known[key].request
        return key in self._namespaces[request.tenant].held.get(kind_of(request), ())

    def _let_in(self, here: _Namespace) -> list[RequestAdded]:
        coming: list[RequestAdded] = []
        while here.queue and len(here.waiting) < self.most:
            first = heappop(here.queue)[3]
            kind = kind_of(first.request)
            if here.holds(first):
                for each in here.take_held(kind):
                    here.count(kind_of(each.request), 1)
                    coming.append(each)
        return coming
