"""What each owner of keys may hold at once and has had today, for whoever decides whose turn it is.

Keys of one owner have their tasks in common, and so what they may: the most generous of them counts. Filled
by the keyring and by the leader's look at the store, asked by the dispatcher.
"""

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.apps.cluster.keys import Key, Keys
from gpu_orchestrator.apps.cluster.limits import DEFAULTS, UNLIMITED, Allowance, allowance


class Owners:
    """`used_s` are the GPU seconds of today by owner, of what has ended."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._may: dict[str, Allowance] = {}
        self._revision = -1
        self.used_s: dict[str, float] = {}

    def follow(self, keys: Keys) -> None:
        """Those that there are, in place of those there were."""
        if keys.revision == self._revision:
            return
        self._revision = keys.revision
        found: dict[str, Allowance] = {}
        for key in keys.all():
            may = self.of_key(key)
            found[key.owner] = _more(found[key.owner], may) if key.owner in found else may
        self._may = found

    def of_key(self, key: Key) -> Allowance:
        return UNLIMITED if key.is_unlimited else allowance(key.limits, self._settings)

    def may(self, owner: str) -> Allowance:
        """Whose keys are gone may what a key may that says nothing."""
        return self._may.get(owner) or allowance(DEFAULTS, self._settings)

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
