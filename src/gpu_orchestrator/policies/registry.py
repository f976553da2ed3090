"""Strategies and allocators by name. Ours are one line each; packages add theirs as plugins.

Reading installed packages' metadata is IO, so `adapters/plugins.py` does that, for every process that
decides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from gpu_orchestrator.core.policy import Allocator, Policy, Strategy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.policies.allocators.contiguous import contiguous
from gpu_orchestrator.policies.allocators.packed import packed
from gpu_orchestrator.policies.allocators.prefer_ids import prefer_ids
from gpu_orchestrator.policies.allocators.spread import spread
from gpu_orchestrator.policies.strategies import (
    bin_pack,
    cost_optimized,
    least_fragmenting,
    least_loaded,
    random,
    topology,
)

T = TypeVar("T")

GROUP = "gpu_orchestrator.strategies"
"""Entry point group in which a package names its strategies."""

STRATEGIES: dict[str, Strategy] = {
    "leastLoaded": least_loaded.strategy,
    "random": random.strategy,
    "costOptimized": cost_optimized.strategy,
    "binPack": bin_pack.strategy,
    "leastFragmenting": least_fragmenting.strategy,
    "topology": topology.strategy,
}
ALLOCATORS: dict[str, Allocator] = {
    "contiguous": contiguous,
    "spread": spread,
    "preferIds": prefer_ids,
    "packed": packed,
}


LONGEST_NAME = 80
"""Characters of an unknown name that a message shows."""


class UnknownPolicy(Exception):
    """No strategy or allocator of that name."""


class BadPlugin(Exception):
    """A strategy from a plugin cannot be used."""


@dataclass(frozen=True)
class Registry:
    strategies: Mapping[str, Strategy] = field(default_factory=STRATEGIES.copy)
    allocators: Mapping[str, Allocator] = field(default_factory=ALLOCATORS.copy)
    default_strategy: str = "leastLoaded"
    default_allocator: str = "contiguous"
    _policies: dict[tuple[str, str], Policy] = field(default_factory=dict, repr=False)

    def with_plugins(self, plugins: Iterable[tuple[str, Callable[[], Any]]]) -> "Registry":
        """Return a registry that also knows these plugins, given as names and loaders."""
        strategies = dict(self.strategies)
        for name, load in plugins:
            if name in strategies:
                raise BadPlugin(f"strategy {name!r} is there already; give the new one another name")
            strategies[name] = _loaded(name, load)
        return Registry(strategies, self.allocators, self.default_strategy, self.default_allocator)

    def policy(self, strategy: str = "", allocator: str = "") -> Policy:
        """Return the policy of these names; empty means the default."""
        names = (strategy or self.default_strategy, allocator or self.default_allocator)
        if names not in self._policies:
            chosen = _find("strategy", names[0], self.strategies)
            self._policies[names] = Policy(chosen, _find("allocator", names[1], self.allocators))
        return self._policies[names]

    def policy_of(self, request: Request) -> Policy:
        return self.policy(request.strategy, request.allocator)


def _find(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name in known:
        return known[name]
    near = {each.lower(): each for each in known}
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}…"
    close = get_close_matches(name.lower(), near, n=1)
    hint = f"; did you mean {near[close[0]]!r}?" if close else ";"
    raise UnknownPolicy(f"unknown {kind} {name!r}{hint} known: {', '.join(sorted(known))}")


def _loaded(name: str, load: Callable[[], Any]) -> Strategy:
    try:
        strategy = load()
    except Exception as error:  # a package may raise anything while it is imported
        raise BadPlugin(f"strategy {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(strategy, Strategy):
        raise BadPlugin(f"strategy {name!r} is a {type(strategy).__name__}; it must be a Strategy")
    return strategy
