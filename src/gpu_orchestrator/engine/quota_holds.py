"""Keep quota for the first requests whose queue has no room, so that smaller ones do not use it up forever.

A large request of a full queue needs much of it at once, and whatever is let go is taken by small ones. So
one that has waited long enough gets a hold on quota, as it gets a hold on a node: in its queue, and in those
above it, nobody of a later turn starts on what it needs. What runs goes on. A hold ends when its owner
begins, or after a while; then it rests as long, and the next one lasts twice as long. Used by the engine.
"""

from dataclasses import dataclass, replace

from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.queues import Full, Wish, milli_of
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine import gang_quota
from gpu_orchestrator.engine.candidates import FIRST, Rest
from gpu_orchestrator.engine.events import Action, Refuse
from gpu_orchestrator.engine.gang_members import to_decide
from gpu_orchestrator.engine.kept import name_of
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import refused
from gpu_orchestrator.engine.reservations import AGAIN_S, LOOK_SELDOM_S, Reservations
from gpu_orchestrator.engine.turns import Turn


@dataclass(frozen=True, slots=True)
class QuotaHold:
    """`waiting` is the request, or of a gang the member that is last in turn; `name` is its key, or the
    gang's."""

    name: str
    waiting: Waiting
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class _Wanted:
    waiting: Waiting
    wish: Wish
    kinds: tuple[tuple[Shape, Policy], ...]


class QuotaHolds:
    def __init__(self, parts: Parts, reservations: Reservations) -> None:
        self._parts, self._reservations, self._rules = parts, reservations, reservations.rules
        self._quota, self._queues = parts.quota, parts.quota.queues
        self.kept: dict[str, QuotaHold] = {}
        self._rests: dict[str, Rest] = {}
        self._looked_at = -LOOK_SELDOM_S
        parts.quota.latest = self.latest
        self._wanted_at: float | None = None

    def next_at(self, now: float) -> float | None:
        """Return when `tend` has something to do; None if only an event can change that."""
        times = [each.until for each in self.kept.values()]
        if self._wanted_at is not None:
            times.append(max(self._wanted_at, self._looked_at + LOOK_SELDOM_S))
        return max(min(times), now) if times else None

    def latest(self) -> Turn | None:
        """Return the turn of the last owner; None if there is none."""
        return max((self._parts.queue.turn(each.waiting) for each in self.kept.values()), default=None)

    def passed_by(self, request: Request) -> list[str]:
        """Return the holds that do not keep this request out: its own, and those of later turns."""
        return [each.name for each in self.kept.values() if self._passes(request, each.waiting)]

    def keeps_out(self, request: Request) -> bool:
        """Return True if the queue of this request has room for it, and that is kept for others."""
        if not self.kept or not request.queue or not isinstance(self._quota.judge(request), Full):
            return False
        with self._queues.without(self.kept):
            shape, models = request.shape, self._quota.models
            return not isinstance(
                self._queues.judge(request.queue, milli_of(shape), shape.models, models), Full
            )

    def _passes(self, request: Request, owner: Waiting) -> bool:
        if owner.request.key == request.key or request.key in self._parts.promised:
            return True
        gang, other = request.gang, owner.request.gang
        if gang is not None and other is not None and gang.name == other.name:
            return True
        queue = self._parts.queue
        waiting = queue.get(request.key) or self._parts.gangs.get(request.key)
        return waiting is not None and queue.turn(waiting) < queue.turn(owner)

    def note(self, waiting: Waiting) -> str:
        """Return what the owner of a hold is told; empty for others."""
        hold = self.kept.get(name_of(waiting)) if self.kept else None
        until = self._rules.told(hold.until) if hold else ""
        return f"waits: what it needs of its queue is kept for it until {until}" if hold else ""

    # --- as time passes ------------------------------------------------------------------------------------

    def tend(self, now: float, actions: list[Action]) -> None:
        """End and make holds, as far as it is time for that."""
        for each in list(self.kept.values()):
            if not self._waits(each):
                self._rests.pop(each.name, None)
                self._drop(each)
            elif each.until <= now and each.name not in self._reservations.kept:
                lasted_s = each.until - each.since
                self._rests[each.name] = Rest(hold_at=now + lasted_s, lasted_s=lasted_s)
                self._drop(each)
                self._tell(each.waiting, actions)
        if not len(self._queues) or not self._rules.holds:
            return
        if self._wanted_at is None and self._has_blocked():
            self._wanted_at = now
        if self._wanted_at is not None and max(self._wanted_at, self._looked_at + LOOK_SELDOM_S) <= now:
            self._looked_at, self._wanted_at = now, None
            self._look(now, actions)

    def _has_blocked(self) -> bool:
        return next(self._parts.queue.blocked(), None) is not None or self._parts.gangs.size > 0

    def _waits(self, hold: QuotaHold) -> bool:
        if hold.waiting.request.gang is None:
            return self._parts.queue.get(hold.name) is hold.waiting
        members = self._parts.gangs.named(hold.name)
        return members is not None and not members.is_short

    def _look(self, now: float, actions: list[Action]) -> None:
        """Make holds for the first in turn that have waited long enough."""
        due, looks = now + self._rules.hold_after_s, FIRST
        self._rests = {name: rest for name, rest in self._rests.items() if self._knows(name)}
        for waiting in self._in_turn():
            name = name_of(waiting)
            if name in self.kept:
                continue
            rest = self._rests.get(name) or Rest()
            at = max(waiting.since + self._rules.hold_after_s, rest.hold_at)
            if at > now or not looks:
                due = min(due, max(at, now))
                continue
            if len(self.kept) >= self._rules.holds:
                break  # when one ends, `tend` looks again
            looks -= 1
            if (wanted := self._wanted(waiting)) is not None and self._could_run(wanted):
                self._hold(wanted, now, 2.0 * rest.lasted_s or self._rules.hold_s)
                self._tell(waiting, actions)
            else:
                self._rests[name] = Rest(hold_at=now + AGAIN_S, lasted_s=rest.lasted_s)
                due = min(due, now + AGAIN_S)
        self._wanted_at = due if self._has_blocked() else None

    def _knows(self, name: str) -> bool:
        return self._parts.queue.get(name) is not None or self._parts.gangs.named(name) is not None

    def _in_turn(self) -> list[Waiting]:
        queue = self._parts.queue
        gangs = (each for each in self._parts.gangs.parked() if each.request.queue)
        return sorted((*queue.blocked(), *gangs), key=queue.turn)

    def _wanted(self, waiting: Waiting) -> _Wanted | None:
        """Return what this request or gang asks of its queue; None if its queue has room for it."""
        request = waiting.request
        if request.gang is None:
            models = request.shape.models or self._quota.models()
            return _Wanted(waiting, (milli_of(request.shape), models), ((request.shape, waiting.policy),))
        members = self._parts.gangs.named(request.gang.name)
        if members is None or members.is_short:
            return None
        gang = to_decide(members, self._parts.cache.cluster)
        if not isinstance(gang_quota.within(gang, self._quota), str):
            return None
        least = gang.members[: gang.least]
        kinds = {each.shape: members.waiting[each.key].policy for each in least}
        named = {model for each in kinds for model in each.models or self._quota.models()}
        return _Wanted(
            waiting, (sum(milli_of(each.shape) for each in least), tuple(named)), tuple(kinds.items())
        )

    def _could_run(self, wanted: _Wanted) -> bool:
        """Return True if it may run when nothing else does: by its queue, and by what the nodes are."""
        cluster, queue = self._parts.cache.cluster, wanted.waiting.request.queue
        if not self._queues.may_hold(queue, wanted.wish, self._quota.models):
            return False
        try:
            found = [why_not(shape, cluster, policy) for shape, policy in wanted.kinds]
        except Exception:  # a policy that breaks: its requests are refused with the words when it decides
            return False
        return not any(each is not None and each.never for each in found)

    def _hold(self, wanted: _Wanted, now: float, lasts_s: float) -> None:
        waiting = wanted.waiting
        name = name_of(waiting)
        self.kept[name] = QuotaHold(name, waiting, now, now + lasts_s)
        self._queues.keep(name, waiting.request.queue, wanted.wish)
        self._quota.passes = self.passed_by

    def _tell(self, waiting: Waiting, actions: list[Action]) -> None:
        """Tell the owner of its hold, or that it has none any longer."""
        note, gang = self.note(waiting), waiting.request.gang
        if gang is None:
            full = self._quota.judge(waiting.request)
            if isinstance(full, Full):
                said = refused(full, len(self._parts.cache.cluster))
                actions.append(Refuse(waiting.request, replace(said, kept=note)))
        elif (members := self._parts.gangs.named(gang.name)) is not None and members.refusal is not None:
            said = replace(members.refusal, kept=note)
            actions.extend(Refuse(each.request, said) for each in members.waiting.values())

    def _drop(self, hold: QuotaHold) -> None:
        del self.kept[hold.name]
        self._wanted_at = self._parts.now
        self._queues.keep_no_longer(hold.name)
        if not self.kept:
            self._quota.passes = None
        self._parts.gangs.something_freed()
