"""Track which nodes have a live agent, by when *we* saw its Lease renewed: clocks need not agree.

A live agent may be one whose driver hangs, or whose report is refused. So each renewal says when the look
began that the written report tells of. Both times are of the agent's clock: only their difference counts.
"""

from collections.abc import Callable
from datetime import datetime

from gpu_orchestrator.api import deviceleases, names, timestamps
from gpu_orchestrator.api.kubernetes import Lease

LIVE_S = 90.0
RENEWED_S = 66.0
"""A living agent renews within this: its `heartbeatSeconds` are 60 at most."""
NEVER = float("-inf")


class AgentLiveness:
    """`clock` is monotonic; `today` is wall-clock time, for leases that existed before we started. `changed`
    is called with the node whenever a heartbeat came or went."""

    def __init__(
        self,
        clock: Callable[[], float],
        today: Callable[[], datetime],
        changed: Callable[[str], None] = lambda node: None,
    ) -> None:
        self._clock, self._today, self._changed = clock, today, changed
        self._renewed: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._found: dict[str, float] = {}

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None or deviceleases.is_device(lease):
            return
        name = lease.metadata.name
        if not name.startswith(names.AGENT_LEASE_PREFIX):
            return
        node = name.removeprefix(names.AGENT_LEASE_PREFIX)
        if new is None:
            for known in (self._renewed, self._looked, self._found):
                known.pop(node, None)
        elif old is None:
            if new.spec.holder_identity:
                self._found[node] = self._clock()
            self._renew(node, new, self._clock() - self._age_s(new))
        elif old.spec.renew_time != new.spec.renew_time:
            self._renew(node, new, self._clock())
        self._changed(node)

    def _renew(self, node: str, lease: Lease, at: float) -> None:
        self._renewed[node] = at
        looked_at = lease.metadata.annotations.get(names.LOOKED_AT)
        if looked_at is None:
            self._looked.pop(node, None)
        else:
            before = self._looked.get(node, NEVER)
            self._looked[node] = max(before, at - _look_age_s(lease, looked_at))

    def is_live(self, node: str) -> bool:
        renewed = self._renewed.get(node)
        return renewed is not None and self._clock() - renewed < LIVE_S

    def may_live(self, node: str) -> bool:
        """Return True also where we cannot know yet: an agent whose clock is far off looks dead until we see
        it renew. What it reports to be in use must not be given away meanwhile."""
        found = self._found.get(node)
        return self.is_live(node) or (found is not None and self._clock() - found < RENEWED_S)

    def has_looked_since(self, node: str, at: float) -> bool:
        """Return True if the agent's report tells of a look that began after this moment of our clock. An
        agent of an earlier release does not say; its report is taken for one."""
        looked = self._looked.get(node)
        return looked is None or looked > at

    def _age_s(self, lease: Lease) -> float:
        try:
            renewed = timestamps.parse(lease.spec.renew_time or "")
            return abs((self._today() - renewed).total_seconds())
        except (ValueError, TypeError, OverflowError):  # malformed, or without a time zone
            return LIVE_S


def _look_age_s(lease: Lease, looked_at: str) -> float:
    """Return how old the look was when the Lease was renewed."""
    try:
        age = timestamps.parse(lease.spec.renew_time or "") - timestamps.parse(looked_at)
    except (ValueError, TypeError, OverflowError):  # empty: no look yet; or malformed, or without a time zone
        return -NEVER
    return max(age.total_seconds(), 0.0)
