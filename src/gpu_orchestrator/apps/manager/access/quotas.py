"""What each owner of keys may hold at once and has had today, for whoever decides whose turn it is.

Keys of one owner have their tasks in common, and so what they may: the most generous of them counts. Filled
by the keyring and by the leader's look at the store, asked by the dispatcher.
"""

import sys

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.apps.manager.access.keys import Key, Keys
from gpu_orchestrator.apps.manager.access.limits import DEFAULTS, UNLIMITED, Allowance, Limits, allowance

FOR_EVER = sys.maxsize


class Quotas:
    """`used_s` are the GPU seconds of today by owner, of what has ended."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._may: dict[str, Allowance] = {}
        self._by_limits: dict[Limits, Allowance] = {}
        self._revision = -1
        self._until_ms = FOR_EVER
        """When the first of the keys expires: from then on it gives its owner nothing."""
        self.used_s: dict[str, float] = {}

    def follow(self, keys: Keys) -> None:
        """Those that there are, in place of those there were. Only who may submit gives its owner anything:
        a worker's token has no limits, and must not lift those of a key."""
        if keys.revision == self._revision and keys.now_ms() < self._until_ms:
            return
        self._revision = keys.revision
        self._by_limits.clear()
        found: dict[str, Allowance] = {}
        live = list(keys.all())
        self._until_ms = min((key.expires_ms for key in live if key.expires_ms), default=FOR_EVER)
        for key in live:
            if key.may("submit"):
                may = self.of_key(key)
                found[key.owner] = _more(found[key.owner], may) if key.owner in found else may
        self._may = found

    def of_key(self, key: Key) -> Allowance:
        return UNLIMITED if key.is_unlimited else self._of(key.limits)

    def may(self, owner: str) -> Allowance:
        """Whose keys are gone may what a key may that says nothing."""
        return self._may.get(owner) or self._of(DEFAULTS)

    def weight(self, owner: str) -> float:
        return self.may(owner).weight

    def most(self, owner: str) -> int | None:
        """How many tasks of it may run now; None for any number."""
        may = self.may(owner)
        if may.gpu_seconds and self.used_s.get(owner, 0.0) >= may.gpu_seconds:
            return 0
        return may.running or None

    def held_back(self, owner: str, running: int) -> str:
        """Why none of its tasks may begin, or empty."""
        may, most = self.may(owner), self.most(owner)
        if most == 0:
            return f"{owner} has used the {may.gpu_seconds} GPU seconds that it may use today (UTC)"
        if most is not None and running >= most:
            return f"{running} tasks of {owner} run, which is as many as may"
        return ""

    def _of(self, limits: Limits) -> Allowance:
        """Remembered: every request asks."""
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
