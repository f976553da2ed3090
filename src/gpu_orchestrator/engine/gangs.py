"""Gangs that wait: their members come one by one and are decided together.

              enough members              refused
    short ────────────────────▶ queued ────────────▶ parked
      ▲                          │  ▲                  │
      │ members leave            │  └──────────────────┘ something became free, and it rested
      └──────────────────────────┤
                                 ▼ placed together
                     members in flight, then held; members that come later are placed beside them

In the queue a gang is one entry, its speaker: it has the lane, flow and rank of the member that would be
last, or one important member would take all others along. Kept by the engine.
"""

from collections.abc import Container, Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import SEARCH_STEPS, may_fit
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.engine import gang_quota
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.gang_marks import GangMarks
from gpu_orchestrator.engine.gang_members import Members, PartlyStarted, Stage, short, to_decide
from gpu_orchestrator.engine.parked_gangs import ParkedGangs
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota

PATIENCE_S = 1.0
"""How long a gang may be short before its members are told: mostly all of them come at once."""
DECISION_LOOKS = 20
"""To decide a parked gang costs as much as this many looks at its room, and one more for each member."""
MEMBERS_PER_LOOK = 64
STEPS_PER_S = 500
"""Steps of the search for mixed members, of all gangs together: about a twentieth of the time."""


class Gangs:
    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._gangs: dict[str, Members] = {}
        self._gang_of: dict[str, Members] = {}
        self._parked = ParkedGangs()
        self._marks = GangMarks()
        self._short: dict[str, float] = {}
        """When to tell the members of a gang that others are missing."""
        self._steps, self._steps_at = [SEARCH_STEPS], 0.0

    def steps(self, now: float) -> list[int]:
        """Return how many steps the search for places may take now; it takes them from the list."""
        new = int((now - self._steps_at) * STEPS_PER_S)
        if new > 0:
            self._steps[0], self._steps_at = min(self._steps[0] + new, SEARCH_STEPS), now
        return self._steps

    @property
    def has_waiting(self) -> bool:
        return any(gang.waiting for gang in self._gangs.values())

    def get(self, key: str) -> Waiting | None:
        """Return the member that waits under this key."""
        gang = self._gang_of.get(key)
        return None if gang is None else gang.waiting.get(key)

    def refusal(self, key: str, nodes: int) -> Refusal | None:
        """Return why this member still waits; None if it was not decided yet."""
        gang = self._gang_of[key]
        return short(gang, nodes) if gang.stage == "short" else gang.refusal

    def of(self, key: str) -> Members | None:
        """Return the gang of this member."""
        return self._gang_of.get(key)

    def last(self, key: str) -> Waiting | None:
        """Return the member that is last in turn of those that wait in the gang of this one."""
        gang = self._gang_of.get(key)
        return gang.by_turn[-1] if gang and gang.waiting else None

    def named(self, name: str) -> Members | None:
        return self._gangs.get(name)

    @property
    def size(self) -> int:
        return len(self._gangs)

    def parked(self) -> Iterator[Waiting]:
        """Yield of each gang that was refused the member that is last in turn."""
        for gang in self._gangs.values():
            if gang.stage == "parked" and not gang.is_short and not gang.has_many_kinds:
                if gang.last is None or gang.last.request.key not in gang.waiting:
                    gang.last = gang.by_turn[-1]
                if gang.refusal is not None and not gang.refusal.never and not gang.refusal.error:
                    yield gang.last

    def stage(self, key: str) -> Stage:
        return self._gang_of[key].stage

    def requests(self) -> Iterator[Request]:
        """Return the members that wait, less one of each gang that is queued: the queue has its speaker."""
        for gang in self._gangs.values():
            yield from islice(
                (each.request for each in gang.waiting.values()), int(gang.stage == "queued"), None
            )

    def counts(self) -> dict[Literal["active", "parked"], int]:
        """Return how many members are in each state, without the speakers, which the queue counts."""
        active = parked = 0
        for gang in self._gangs.values():
            if gang.stage == "queued":
                active += len(gang.waiting) - 1
            else:
                parked += len(gang.waiting)
        return {"active": active, "parked": parked}

    def spoken_for(self, speaker: Waiting) -> Members:
        """Return the gang whose speaker the queue returned."""
        terms = speaker.request.gang
        return self._gangs[terms.name if terms else ""]

    # --- members come and go -----------------------------------------------------------------------------

    def enter(self, waiting: Waiting, terms: GangTerms, now: float) -> Waiting | None:
        """Add a member that waits; return the entry for the queue if the gang has enough members by it."""
        gang = self._add(waiting, terms)
        if gang.stage == "parked":
            self.recheck(gang)
        elif gang.is_short:
            self._short.setdefault(terms.name, now + PATIENCE_S)
        return self._if_complete(gang, now)

    def joins_refused(self, key: str) -> Refusal | None:
        """Return why the gang that this member has joined waits, if that is known; it counts as told. Nobody
        decides the gang again for it, unless it may fit then."""
        gang = self._gang_of[key]
        if gang.stage != "parked" or gang.refusal is None or key in gang.told:
            return None
        gang.told.add(key)
        return gang.refusal

    def _if_complete(self, gang: Members, now: float) -> Waiting | None:
        """Return the entry for the queue of a gang that was short and has enough members now. One that was
        refused rests first, or a member that comes and goes would have it decided each time."""
        if gang.stage != "short" or gang.is_short:
            return None
        if gang.rests_until <= now:
            return self.enqueue(gang)
        gang.stage = "parked"
        self._parked.add(gang)
        self.recheck(gang)
        return None

    def leave(self, key: str, now: float) -> Waiting | None:
        """Take out a member that waits; return the entry to take out of the queue, if too few are left."""
        gang = self._gang_of.pop(key)
        del gang.waiting[key]
        self._drop_if_empty(gang)
        if gang.is_short:
            return self.dequeue(gang, now)
        self.recheck(gang)
        return None

    def rest(self, waiting: Waiting, terms: GangTerms, now: float, rng: Rng) -> None:
        """Add a member that could not be placed. Mostly none of its gang could: all of them come, one by one,
        and rest together. Two schedulers that took a half each of one gang's devices rest for different
        times, or they would do it again."""
        gang = self._add(waiting, terms)
        if gang.stage == "short":
            self.park(gang, None, now, spread=rng.random())
        self.recheck(gang)

    def _add(self, waiting: Waiting, terms: GangTerms) -> Members:
        """The terms of the first member count for all."""
        gang = self._gangs.setdefault(terms.name, Members(terms))
        gang.waiting[waiting.request.key] = waiting
        self._gang_of[waiting.request.key] = gang
        return gang

    def starts(self, key: str, node: str) -> None:
        """A member that waited is placed: in flight, or observed on a node."""
        gang = self._gang_of[key]
        gang.waiting.pop(key, None)
        gang.started[key] = node

    def confirm(self, key: str, *, has_ended: bool = False) -> None:
        """A member that was in flight runs, or has run already."""
        if (gang := self._gang_of.get(key)) is not None:
            gang.confirmed.add(key)
            if not gang.has_begun and len(gang.confirmed) + gang.ended_early >= gang.terms.least:
                gang.has_begun = True
                self._marks.look_at(gang)
            gang.ended_early += has_ended

    def observed(
        self, key: str, node: str, terms: GangTerms, now: float, *, is_marked: bool = False
    ) -> Waiting | None:
        """A member was found running, placed before a restart or by others. Return the entry for the queue if
        those that wait are enough beside it."""
        gang = self._gangs.setdefault(terms.name, Members(terms))
        self._gang_of[key] = gang
        gang.has_observed = True
        if is_marked:
            gang.has_begun = True
            gang.marked.add(key)
        self.starts(key, node)
        self.confirm(key)
        self._marks.look_at(gang)
        return self._if_complete(gang, now)

    def ends(self, key: str) -> None:
        """A member that was in flight or held is gone. Those that still wait are asked for again."""
        gang = self._gang_of.pop(key, None)
        if gang is not None:
            gang.started.pop(key, None)
            gang.confirmed.discard(key)
            if not gang.started:
                gang.has_begun, gang.ended_early = False, 0
            if key in gang.marked:
                gang.marked.discard(key)
                self._marks.look_at(gang)
            self._drop_if_empty(gang)

    def _drop_if_empty(self, gang: Members) -> None:
        if not gang.waiting and not gang.started:
            self._gangs.pop(gang.terms.name, None)
            self._parked.remove(gang.terms.name)
            self._marks.forget(gang)

    def to_mark(self) -> list[str]:
        """Return the members that are to carry the mark that their gang has begun, and do not yet."""
        return self._marks.due()

    def marked(self, key: str) -> None:
        """This member carries the mark now."""
        if (gang := self._gang_of.get(key)) is not None and key in gang.started:
            gang.marked.add(key)

    def partly_started(self, in_flight: Container[str]) -> list[PartlyStarted]:
        """Return gangs that hold places and began without enough members: some wait, or were deleted while
        the others were placed."""
        return [
            PartlyStarted(name, gang.terms.least, tuple(gang.started))
            for name, gang in self._gangs.items()
            if gang.started
            and (gang.waiting or not gang.has_observed)
            and not gang.has_begun
            and not any(key in in_flight for key in gang.started)
        ]

    # --- the queue ---------------------------------------------------------------------------------------

    def enqueue(self, gang: Members) -> Waiting:
        """Return the entry for the queue of a gang that has enough members."""
        first = gang.last = gang.by_turn[-1]
        # Keys of requests are UIDs and ids, which have no blank: this one is nobody's.
        request = replace(first.request, key=f"gang {gang.terms.name}", gang=gang.terms)
        gang.stage, gang.speaker = "queued", replace(first, request=request, queue=None, is_parked=False)
        self._parked.remove(gang.terms.name)
        return gang.speaker

    def dequeue(self, gang: Members, now: float) -> Waiting | None:
        """Let the gang wait for members again; return its entry if the queue has one."""
        speaker, gang.speaker = gang.speaker, None
        self._parked.remove(gang.terms.name)
        gang.stage = "short"
        gang.told.clear()
        if gang.waiting:
            self._short.setdefault(gang.terms.name, now + PATIENCE_S)
        return speaker

    def park(self, gang: Members, refusal: Refusal | None, now: float, spread: float = 0.0) -> None:
        """Let a gang wait that was refused or could not be placed. It is tried again when something becomes
        free, but rests first: to decide it costs more than a request does. `spread` makes the rest longer by
        that part."""
        if refusal is None or gang.refusal is None or refusal.message != gang.refusal.message:
            gang.told.clear()
        gang.stage, gang.speaker, gang.refusal = "parked", None, refusal
        self._short.pop(gang.terms.name, None)
        gang.rests_until = now + self._backoff.delay(gang.attempts) * (1.0 + spread)
        gang.attempts += 1
        self._parked.add(gang)

    def placed(self, gang: Members, now: float) -> None:
        """Enough members have places now. Those left over are tried again when something becomes free."""
        gang.attempts = 0
        if gang.waiting:
            started = f"{len(gang.started)} members have started"
            said = f"gang {gang.terms.name}: {started}, and there is no room for this one yet"
            self.park(gang, Refusal(0, gang=said), now)
        else:
            gang.stage, gang.speaker, gang.refusal = "short", None, None

    def recheck(self, gang: Members) -> None:
        """This parked gang has other members now, or failed for a reason that may have passed."""
        self._parked.recheck(gang)

    def untold(self, gang: Members) -> list[Request]:
        """Return the members that were not told why the gang waits; from now on they count as told."""
        news = [each.request for key, each in gang.waiting.items() if key not in gang.told]
        gang.told = set(gang.waiting)
        return news

    def something_freed(self) -> None:
        """All parked gangs may fit now."""
        self._parked.something_freed()

    def next_at(self, now: float) -> float | None:
        """Return when `helped` or `short_too_long` may have something to return; None if only an event can
        change that."""
        times = self._parked.next_at(now), next(iter(self._short.values()), None)  # the first was first
        known = [at for at in times if at is not None]
        return max(min(known), now) if known else None

    def short_too_long(self, now: float, nodes: int) -> Iterator[tuple[Request, Refusal]]:
        """Yield the members, each once, that wait for others longer than is worth no word."""
        for name in [name for name, at in self._short.items() if at <= now]:
            del self._short[name]
            gang = self._gangs.get(name)
            if gang is not None and gang.is_short:
                gang.refusal = short(gang, nodes)
                yield from ((each, gang.refusal) for each in self.untold(gang))

    def helped(self, cluster: Cluster, quota: Quota, now: float) -> Iterator[Members]:
        """Yield parked gangs for which there is room by the numbers now, as many as may be looked at."""
        rooms: dict[Shape, int] = {}
        for gang in self._parked.due(now):
            if gang.is_short:
                continue
            known = len(rooms)
            together = gang_quota.within(to_decide(gang, cluster), quota)
            fits = (
                gang.has_many_kinds
                or gang.needs_judging
                or (not isinstance(together, str) and may_fit(together, cluster, rooms))
            )
            self._parked.took(len(rooms) - known + len(gang.waiting) // MEMBERS_PER_LOOK)
            if fits:
                self._parked.took(DECISION_LOOKS + len(gang.waiting))
                yield gang
