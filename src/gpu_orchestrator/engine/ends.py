"""When holders end, as far as they declare it. Kept by `Reservations`.

What is declared is believed until it proves wrong: who runs longer is taken to run on for as long as it is
late, and after `MOST_LATE_S` as one who declared nothing.
"""

from collections.abc import Callable

LEAST_LATE_S = 30.0
"""Who is late is taken to need this long at least: it is being ended, and its devices are being released."""
MOST_LATE_S = 3600.0
MOST_AHEAD_S = 86_400.0
"""Ends further away are taken as unknown: what is free beside them would be kept from others for too long."""


class Ends:
    """`owner_of` returns whose run time counts for what is held under a key."""

    def __init__(self, owner_of: Callable[[str], str]) -> None:
        self._owner_of = owner_of
        self._at: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def note(self, owner: str, at: float) -> None:
        self._at[owner] = at

    def forget(self, owner: str) -> float:
        """Forget one that ended; return the end that it declared, 0 if it declared none."""
        return self._at.pop(owner, 0.0)

    def late(self, now: float, by_s: float) -> list[str]:
        """Return who runs longer than declared, by at least this much."""
        return [owner for owner, at in self._at.items() if at + by_s <= now]

    def expected(self, key: str, now: float) -> float | None:
        """Return when what is held under this key is free, by what is known; None if nothing is."""
        at = self._at.get(self._owner_of(key))
        if at is None or at > now:
            return at if at is not None and at - now <= MOST_AHEAD_S else None
        late_s = now - at
        return now + max(late_s, LEAST_LATE_S) if late_s <= MOST_LATE_S else None
