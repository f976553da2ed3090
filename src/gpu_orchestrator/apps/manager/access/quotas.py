"""How many tasks each owner may run at once, and the GPU seconds it may use and has used today.

Keys of one owner share their tasks and so their limits: for each limit the most generous key counts.
`KeySync` updates the limits, the leader updates the usage from the store, and the dispatcher reads both and
adds what just ended.
"""

import sys

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.apps.manager.access.keys import Key, Keys
from gpu_orchestrator.apps.manager.access.limits import DEFAULTS, UNLIMITED, Allowance, Limits, allowance

NEVER_MS = sys.maxsize


class Quotas:
    """`used_s` holds the GPU seconds of today's ended tasks by owner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._default = allowance(DEFAULTS, settings)
        self._by_owner: dict[str, Allowance] = {}
        self._by_limits: dict[Limits, Allowance] = {}
        self._revision = -1
        self._until_ms = NEVER_MS
        """When the next key expires; from then on its limits no longer count for its owner."""
        self.used_s: dict[str, float] = {}

    def refresh(self, keys: Keys) -> None:
        """Recompute the limits of all owners from the current keys. Only keys that may submit count: a worker
        token has no limits, and must not lift those of the owner's other keys."""
        if keys.revision == self._revision and keys.now_ms() < self._until_ms:
            return
        self._revision = keys.revision
        self._by_limits.clear()
        found: dict[str, Allowance] = {}
        live = list(keys.all())
        self._until_ms = min((key.expires_ms for key in live if key.expires_ms), default=NEVER_MS)
        for key in live:
            if key.may("submit"):
                may = self.of_key(key)
                found[key.owner] = _more(found[key.owner], may) if key.owner in found else may
        self._by_owner = found

    def of_key(self, key: Key) -> Allowance:
        return UNLIMITED if key.is_unlimited else self._of(key.limits)

    def may(self, owner: str) -> Allowance:
        """Return the limits of an owner. Owners without keys get the default limits."""
        return self._by_owner.get(owner) or self._default

    def weight(self, owner: str) -> float:
        return self.may(owner).weight

    def most(self, owner: str) -> int | None:
        """Return how many tasks of this owner may run now; None means without limit."""
        may = self._by_owner.get(owner) or self._default
        if may.gpu_seconds and self.used_s.get(owner, 0.0) >= may.gpu_seconds:
            return 0
        return may.running or None

    def held_back(self, owner: str, running: int) -> str:
        """Return why no task of this owner may start; empty if one may."""
        may, most = self.may(owner), self.most(owner)
        if most == 0:
            return f"{owner} has used the {may.gpu_seconds} GPU seconds that it may use today (UTC)"
        if most is not None and running >= most:
            running_now = "1 task" if running == 1 else f"{running} tasks"
            return f"{owner} has {running_now} running, the most that may run at once"
        return ""

    def _of(self, limits: Limits) -> Allowance:
        """Return the allowance for these limits; cached, because every request needs it."""
        if (found := self._by_limits.get(limits)) is None:
            found = self._by_limits[limits] = allowance(limits, self._settings)
        return found


def _more(one: Allowance, other: Allowance) -> Allowance:
    def most(a: int, b: int) -> int:
        return max(a, b) if a and b else 0

    return Allowance(
        per_minute=most(one.per_minute, other.per_minute),
        per_hour=most(one.per_hour, other.per_hour),
        queued=most(one.queued, other.queued),
        running=most(one.running, other.running),
        gpu_seconds=most(one.gpu_seconds, other.gpu_seconds),
        weight=max(one.weight, other.weight),
    )
