"""The cluster as the engine believes it to be: observed placements, and those set aside but not yet observed.

              assume                 confirm / hold
    unknown ──────────▶ assumed ──────────────────────▶ held
       ▲                   │ forget                       │ release
       └───────────────────┴──────────────────────────────┘
    unknown ── hold ──▶ held        (observed from outside: another scheduler, a restart)

What is observed wins: `hold` replaces what was assumed. Placements outlive their node: a node that leaves
and comes back has them again.
"""

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.node import Node


class Cache:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.assumed: set[str] = set()
        self._placements: dict[str, Placement] = {}
        self._on_node: dict[str, set[str]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._placements

    def __len__(self) -> int:
        return len(self._placements)

    def holds(self, key: str) -> bool:
        return key in self._placements and key not in self.assumed

    def on_node(self, name: str) -> list[Placement]:
        """Return all placements on a node, be it known or not."""
        return [self._placements[key] for key in self._on_node.get(name, ())]

    def placement(self, key: str) -> Placement | None:
        return self._placements.get(key)

    def set_node(self, node: Node) -> bool:
        """Record a node; return False if nothing changed."""
        is_new = node.name not in self.cluster
        changed = self.cluster.set_node(node)
        if is_new:
            for key in sorted(self._on_node.get(node.name, ())):
                self.cluster.account(self._placements[key])
        return changed

    def remove_node(self, name: str) -> None:
        if name in self.cluster:
            self.cluster.remove_node(name)

    def assume(self, placement: Placement) -> None:
        self.cluster.place(placement)
        self._remember(placement)
        self.assumed.add(placement.key)

    def confirm(self, key: str) -> None:
        self.assumed.discard(key)

    def hold(self, placement: Placement) -> str | None:
        """Record an observed placement. Return the node on which something became free by it, if any."""
        before = self._placements.get(placement.key)
        self.assumed.discard(placement.key)
        if before == placement:
            return None
        freed = self.release(placement.key) if before is not None else None
        self._remember(placement)
        if placement.node in self.cluster:
            self.cluster.account(placement)
        return freed

    def forget(self, key: str) -> str | None:
        """Take back an assumed placement. Return the node on which something became free by it, if any."""
        return self.release(key) if key in self.assumed else None

    def release(self, key: str) -> str | None:
        """Remove a placement. Return the node on which something became free by it, if any."""
        placement = self._placements.pop(key, None)
        if placement is None:
            return None
        self.assumed.discard(key)
        keys = self._on_node[placement.node]
        keys.remove(key)
        if not keys:
            del self._on_node[placement.node]
        if placement.node not in self.cluster:
            return None
        self.cluster.release(placement)
        return placement.node

    def _remember(self, placement: Placement) -> None:
        self._placements[placement.key] = placement
        self._on_node.setdefault(placement.node, set()).add(placement.key)
