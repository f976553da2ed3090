"""Track which nodes have a live agent, by when *we* saw its Lease renewed: clocks need not agree."""

from collections.abc import Callable
from datetime import datetime

from gpu_orchestrator.api import deviceleases, names, timestamps
from gpu_orchestrator.api.kubernetes import Lease

LIVE_S = 90.0


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

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        if lease is None or deviceleases.is_device(lease):
            return
        name = lease.metadata.name
        if not name.startswith(names.AGENT_LEASE_PREFIX):
            return
        node = name.removeprefix(names.AGENT_LEASE_PREFIX)
        if new is None:
            self._renewed.pop(node, None)
        elif old is None:
            self._renewed[node] = self._clock() - self._age_s(new)
        elif old.spec.renew_time != new.spec.renew_time:
            self._renewed[node] = self._clock()
        self._changed(node)

    def is_live(self, node: str) -> bool:
        renewed = self._renewed.get(node)
        return renewed is not None and self._clock() - renewed < LIVE_S

    def _age_s(self, lease: Lease) -> float:
        try:
            renewed = timestamps.parse(lease.spec.renew_time or "")
            return abs((self._today() - renewed).total_seconds())
        except (ValueError, TypeError, OverflowError):  # malformed, or without a time zone
            return LIVE_S
