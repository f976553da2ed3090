"""How many different shapes of one namespace wait in the engine at once. Kept by `pending`.

Equal requests wait together and cost one judgement; each different one costs its own. So a namespace may have
`most` different ones in the engine; the pods beyond are held back and come in as others leave, highest
priority first, then the earliest. Pods that ask like one that waits already come in at once.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.engine.events import RequestAdded

MOST_STALE = 64
"""So many entries of requests that are not held any more stay in a queue, or as many as it has others."""

Kind = tuple[Shape, str, str, GangTerms | None]
"""Shape, strategy, allocator and gang: requests of one kind get the same answer."""


def kind_of(request: Request) -> Kind:
    return request.shape, request.strategy, request.allocator, request.gang


@dataclass(slots=True)
class _Namespace:
    """`waiting` counts the requests in the engine by kind; `queue` has entries of requests that have left
    `held` meanwhile, and `held_count` is how many it would have without them."""

    waiting: dict[Kind, int] = field(default_factory=dict)
    held: dict[Kind, dict[str, RequestAdded]] = field(default_factory=dict)
    queue: list[tuple[int, float, int, RequestAdded]] = field(default_factory=list)
    held_count: int = 0

    def holds(self, added: RequestAdded) -> bool:
        return self.held.get(kind_of(added.request), {}).get(added.request.key) is added

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
        if kind in here.waiting or len(here.waiting) < self.most:
            here.waiting[kind] = here.waiting.get(kind, 0) + 1
            return True
        here.held.setdefault(kind, {})[request.key] = added
        here.held_count += 1
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
            del here.held[kind][key]
            here.held_count -= 1
            if not here.held[kind]:
                del here.held[kind]
            return []
        here.waiting[kind] -= 1
        if not here.waiting[kind]:
            del here.waiting[kind]
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
                alike = here.held.pop(kind)
                here.held_count -= len(alike)
                here.waiting[kind] = len(alike)
                coming += alike.values()
        return coming
