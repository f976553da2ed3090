"""Keep places for the first requests that do not fit, so that smaller ones do not start before them forever.

The place kept is the one where the request can start soonest by the declared ends of others. Where these are
not declared, a request that has waited long enough gets a hold. Those that declare to end before the place
begins may use it in between, and so may those whose turn comes before the owner's. To look for a place costs
time, so it is rationed. Used by the engine; `passing.py` lets others in.
"""

from collections.abc import Iterator
from dataclasses import replace

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import gang_quota
from gpu_orchestrator.engine.candidates import Candidates, Rest
from gpu_orchestrator.engine.ends import Ends
from gpu_orchestrator.engine.events import Action, Refuse
from gpu_orchestrator.engine.gang_members import to_decide
from gpu_orchestrator.engine.kept import Kept, Open, is_usable, lifted, name_of, open_on, rooms_of
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.passed import Passed
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from gpu_orchestrator.engine.reservation_search import ROOM_MADE, UNKNOWN, Asked, is_room, search, single
from gpu_orchestrator.engine.turns import Turn

LOOK_EVERY_S, LOOK_SELDOM_S = 0.5, 5.0
"""How often to look for places, and how often if nobody declares an end."""
HOLDERS_PER_S = 4000
"""The next look comes after as many seconds as it takes to read this many holders, if that is longer: about a
hundredth of the time."""
SOONER_EVERY_S = 30.0
"""How often a place is looked for again, if others ended before they declared: it may be found sooner."""
LATE_S = 5.0
"""How long after its moment a place is looked for again, if somebody there has not ended."""
AGAIN_S = 30.0
"""How long a request rests for which no place was found."""


class Reservations:
    def __init__(self, parts: Parts, rules: ReservationRules) -> None:
        self.rules, self.ends = rules, Ends(rules.owner_of)
        self._parts, self._cache, self._queue, self._gangs = parts, parts.cache, parts.queue, parts.gangs
        self.kept: dict[str, Kept] = {}
        self.nodes: set[str] = set()
        self.freed: set[str] = set()
        """Nodes with kept places on which something became free since these were offered."""
        self._rests: dict[str, Rest] = {}
        self._wanted_at: float | None = None
        self._looked_at, self._cost = -LOOK_SELDOM_S, 0
        self._changes = self._early = 0
        self._seen: tuple[int, ...] = ()
        self._open: tuple[int, dict[str, Open]] = (-1, {})
        self._passed = Passed(parts)
        self._candidates = Candidates(parts, self._passed if rules.only_passed else None)

    @property
    def are_on(self) -> bool:
        return self.rules.most > 0

    def __bool__(self) -> bool:
        """True if a place is kept now."""
        return bool(self.kept)

    @property
    def rooms(self) -> int:
        """How many placements of the cluster are places kept."""
        return sum(len(each.rooms) for each in self.kept.values())

    # --- what happens --------------------------------------------------------------------------------------

    def places(self, waiting: Waiting, placement: Placement) -> None:
        """A request is placed; its flow is not charged for it yet."""
        if self.rules.only_passed:
            self._passed.begins(waiting, placement)
        if waiting.request.run_s:
            self.begins(waiting.request.key, waiting.request.run_s)

    def begins(self, key: str, run_s: float) -> None:
        """A request with this run time begins now."""
        if run_s and self.are_on:
            self.ends_at(key, self._parts.now + run_s)

    def ends_at(self, key: str, at: float | None) -> None:
        """What is held under this key ends at this moment, as it declares."""
        if at is not None and self.are_on:
            self.ends.note(key, at)
            self._changes += 1

    def ended(self, key: str) -> None:
        if self.ends and self.ends.forget(key) > self._parts.now:
            self._early += 1

    def late(self, by_s: float) -> list[tuple[str, Kept]]:
        """Return who runs longer than declared by this much, and holds devices of a place."""
        late, found = set(self.ends.late(self._parts.now, by_s)), dict[str, Kept]()
        if not late:
            return []
        for each in self.kept.values():
            for room in each.rooms:
                for holder in self._cache.on_node(room.node):
                    owner = self.rules.owner_of(holder.key)
                    if owner in late and not set(room.devices).isdisjoint(holder.devices):
                        found[owner] = each
        return list(found.items())

    def something_freed(self, node: str) -> None:
        self._changes += 1
        if node in self.nodes:
            self.freed.add(node)

    def node_changed(self, name: str) -> None:
        """The place on this node may be none any longer: the node changed, or is gone."""
        if name in self.nodes:
            self._changes += 1
            self._wanted_at = self._parts.now

    def room_made(self, room: Placement) -> None:
        """Others are evicted for the owner of this room: look again for places that overlap it. Turns change,
        and owner and room would wait for each other."""
        key = room.key.removeprefix(ROOM_MADE)
        gang = self._gangs.of(key)
        for each in self.kept.values():
            if each.name not in (key, gang and gang.terms.name) and each.overlaps(room):
                self.broken(each)

    def broken(self, kept: Kept) -> None:
        """One of an earlier turn has a part of this place now: look for it again."""
        kept.is_broken, self._wanted_at = True, self._parts.now

    # --- what is kept --------------------------------------------------------------------------------------

    def own(self, waiting: Waiting) -> Kept | None:
        return self.kept.get(name_of(waiting))

    def turn(self, kept: Kept) -> Turn:
        return self.turn_of(kept.name, kept.waiting)

    def turn_of(self, name: str, waiting: Waiting) -> Turn:
        return self._passed.turn(name, waiting)

    def comes_before(self, waiting: Waiting, kept: Kept) -> bool:
        """Return True if the turn of a request comes before that of the owner of a place."""
        owner = kept.waiting
        if (waiting.lane, waiting.flow) == (owner.lane, owner.flow):
            return (waiting.rank, waiting.number) < (owner.rank, owner.number)
        return self.turn_of(name_of(waiting), waiting) < self.turn(kept)

    def in_turn(self) -> list[Kept]:
        return sorted(self.kept.values(), key=self.turn)

    def open_on(self, kept: Kept) -> Open:
        """Return what nobody holds on the nodes of the place."""
        mark = self._cache.cluster.changed.mark
        if self._open[0] != mark:
            self._open = mark, {}
        known = self._open[1]
        if kept.name not in known:
            known[kept.name] = open_on(kept, self._cache.cluster)
        return known[kept.name]

    def _still_waits(self, kept: Kept) -> bool:
        """Return True if the owner waits for a place. One whose queue has no room waits for that."""
        request, quota = kept.waiting.request, self._parts.quota
        if request.queue and not (quota.narrowed(request) and quota.has_room(request.queue, kept.amounts)):
            return False
        if self._candidates.is_full(kept.waiting):
            return False
        if kept.waiting.request.gang is None:
            return self._queue.get(kept.name) is kept.waiting
        members = self._gangs.named(kept.name)
        return members is not None and not members.is_short

    def _keep(self, kept: Kept) -> None:
        for room in kept.rooms:
            self._cache.hold(room)
        self.kept[kept.name] = kept
        self.nodes.update(kept.nodes)
        self.freed.update(kept.nodes)  # some of it may be free, for those who end before

    def _drop(self, kept: Kept) -> None:
        del self.kept[kept.name]
        self.nodes = {room.node for each in self.kept.values() for room in each.rooms}
        self.freed &= self.nodes
        for room in kept.rooms:
            self._cache.release(room.key)
        self._gangs.something_freed()
        for node in kept.nodes:
            if node in self._cache.cluster:
                self._queue.wake_for(self._cache.cluster, node, observed=False)

    # --- looking for places --------------------------------------------------------------------------------

    def next_at(self, now: float) -> float | None:
        """Return when `tend` has something to do; None if only an event can change that."""
        if not self.kept:
            return None if self._wanted_at is None else max(self._wanted_at, self._allowed_at, now)
        times = [each.expires if each.is_hold else each.at + LATE_S for each in self.kept.values()]
        if self._wanted_at is not None:
            times.append(self._wanted_at)
        return max(min(times), self._allowed_at, now) if times else None

    @property
    def _allowed_at(self) -> float:
        every_s = LOOK_EVERY_S if self.ends else LOOK_SELDOM_S
        return self._looked_at + max(every_s, self._cost / HOLDERS_PER_S)

    def drop_done(self) -> None:
        """Let go of the places whose owners wait no longer."""
        for each in [each for each in self.kept.values() if not self._still_waits(each)]:
            self._rests.pop(each.name, None)
            self._drop(each)

    def tend(self, now: float, actions: list[Action]) -> None:
        """Drop, move and make places, as far as it is time for that."""
        waiting = len(self._queue) + self._gangs.size
        if not waiting and not self.kept:
            self._wanted_at = None
            return
        if self.kept:
            self.drop_done()
            self._expire(now, actions)
        state = self._changes, self._parts.quota.queues.version, waiting
        if (self._wanted_at is None or self._wanted_at > now) and state != self._seen:
            self._wanted_at = now
        if now < self._looked_at + LOOK_EVERY_S or now < self._allowed_at:
            return
        late = any(now >= each.at + LATE_S for each in self.kept.values())
        if not (late or (self._wanted_at is not None and self._wanted_at <= now)):
            return
        self._wanted_at, self._looked_at, self._cost, self._seen = None, now, 0, state
        self._move(now, actions)
        self._make(now, actions)

    def _expire(self, now: float, actions: list[Action]) -> None:
        for each in [each for each in self.kept.values() if each.is_hold and each.expires <= now]:
            lasted_s = each.expires - each.since
            self._rests[each.name] = Rest(hold_at=now + lasted_s, lasted_s=lasted_s)
            self._drop(each)
            self._tell(each, "", actions)
            self._want(now + lasted_s)

    def _want(self, at: float) -> None:
        self._wanted_at = at if self._wanted_at is None else min(at, self._wanted_at)

    def _move(self, now: float, actions: list[Action]) -> None:
        """Look again for places that others leave too late, that changed, or that may be found sooner."""
        for each in self.in_turn():
            is_late = not each.is_hold and now >= each.at + LATE_S
            must = is_late or each.is_broken or not is_usable(each, self._cache.cluster)
            if not must:
                if each.is_hold or each.early == self._early:
                    continue
                if now < each.looked_at + SOONER_EVERY_S:
                    self._want(each.looked_at + SOONER_EVERY_S)
                    continue
            if self._cost >= HOLDERS_PER_S:
                self._want(now)  # the others come in the next look
                return
            each.looked_at, each.early = now, self._early
            found = self._found(each.waiting, now, guesses=each.is_hold, but=each)
            if found is not None and (must or found.at < each.at - 1.0):
                self._drop(each)
                if found.is_hold:
                    found.since, found.at, found.begins = each.since, each.at, each.begins
                self._keep(found)
                self._tell(found, found.words(self.rules), actions)
            elif must:
                self._drop(each)
                self._tell(each, "", actions)

    def _make(self, now: float, actions: list[Action]) -> None:
        """Make places for the first requests in turn that have none."""
        self._rests = {name: rest for name, rest in self._rests.items() if self._knows(name)}
        self._passed.keep_only(self._knows)
        heads = self._candidates.first(now, lambda each: self._rest_of(each).look_at <= now)
        if (at := self._passed.next_at) is not None:
            self._want(at)
        for waiting in heads:
            if self.own(waiting) is not None:
                continue
            rest = self._rest_of(waiting)
            hold_at = max(waiting.since + self.rules.hold_after_s, rest.hold_at)
            may_hold = hold_at <= now and self._holds < self.rules.holds
            if hold_at > now:
                self._want(hold_at)
            if rest.look_at > now or not (self.ends or may_hold):
                continue
            if self._cost >= HOLDERS_PER_S:
                self._want(now)  # the others come in the next look
                return
            if len(self.kept) >= self.rules.most and not self._make_room_before(waiting):
                return
            if (found := self._found(waiting, now, guesses=may_hold)) is None:
                rest.look_at = now + AGAIN_S
                self._rests[name_of(waiting)] = rest
                self._want(rest.look_at)
            else:
                self._passed.came(found.name, self._queue.turn(waiting))
                self._keep(found)
                self._tell(found, found.words(self.rules), actions)

    def _rest_of(self, waiting: Waiting) -> Rest:
        return self._rests.get(name_of(waiting)) or Rest()

    def _knows(self, name: str) -> bool:
        return self._queue.get(name) is not None or self._gangs.named(name) is not None

    @property
    def _holds(self) -> int:
        return sum(each.is_hold for each in self.kept.values())

    def _make_room_before(self, waiting: Waiting) -> bool:
        """Drop the last place in turn, if its owner comes after this one."""
        last = self.in_turn()[-1]
        if self.turn(last) <= self.turn_of(name_of(waiting), waiting):
            return False
        self._drop(last)
        return True

    def _asked(self, waiting: Waiting) -> Asked | None:
        """Return what is looked for, on the models that its queue has room for; None if that is none."""
        quota = self._parts.quota
        if (terms := waiting.request.gang) is None:
            request = quota.narrowed(waiting.request)
            return None if request is None else single(request, waiting.policy)
        members = self._gangs.named(terms.name)
        if members is None or members.is_short:
            return None
        gang = gang_quota.within(to_decide(members, self._cache.cluster), quota)
        if isinstance(gang, str):
            return None
        return Asked(gang, {each.key: members.waiting[each.key].policy for each in gang.members})

    def _found(self, waiting: Waiting, now: float, *, guesses: bool, but: Kept | None = None) -> Kept | None:
        """Return where the request can start soonest, if `but` were not kept."""
        if (asked := self._asked(waiting)) is None:
            return None
        cluster, ends = self._cache.cluster, self.ends
        try:
            with lifted([but] if but else [], cluster):
                found, cost = search(
                    asked, cluster, ends, now, self._parts.rng, guesses=guesses, stays=self._stays
                )
        except Exception:  # a policy that breaks: its requests are refused with the words when it decides
            return None
        self._cost += cost + len(asked.gang.members)
        if found is None:
            return None
        name, known = name_of(waiting), self._in_the_way(found.placements, now)
        if found.at < UNKNOWN:
            at = until = found.at
        else:
            lasted_s = self._rests[name].lasted_s if name in self._rests else 0.0
            at, until = now + (2.0 * lasted_s or self.rules.hold_s), max(known, default=now)
        return Kept(
            name,
            waiting,
            rooms_of(name, found.placements),
            at=at,
            until=until,
            since=now,
            looked_at=now,
            is_hold=found.at >= UNKNOWN,
            declared=len(known),
            early=self._early,
            begins=self.rules.told(at),
            amounts=self._parts.quota.amounts(found.placements),
        )

    def _stays(self, key: str) -> bool:
        """Return True for what no end frees: places that are kept, and models that are pinned."""
        return is_room(key) or self._parts.models.stays(key)

    def _in_the_way(self, placements: tuple[Placement, ...], now: float) -> list[float]:
        """Return the known ends of those who hold devices of these places."""
        cluster, found = self._cache.cluster, dict[str, float]()
        for wanted in placements:
            for holder in cluster.usage.held[cluster.row(wanted.node)].values():
                at = self.ends.expected(holder.key, now)
                if at is not None and not set(wanted.devices).isdisjoint(holder.devices):
                    found[self.rules.owner_of(holder.key)] = at
        return list(found.values())

    def _tell(self, kept: Kept, words: str, actions: list[Action]) -> None:
        """Tell the owner of its place, or with empty words that it is kept no longer."""
        for request, refusal in self._refusals(kept):
            actions.append(Refuse(request, replace(refusal, kept=words)))

    def _refusals(self, kept: Kept) -> Iterator[tuple[Request, Refusal]]:
        if (gang := kept.waiting.request.gang) is None:
            if (refusal := self._queue.refusal(kept.waiting)) is not None:
                yield kept.waiting.request, refusal
        elif (members := self._gangs.named(gang.name)) is not None and members.refusal is not None:
            for each in members.waiting.values():
                yield each.request, members.refusal
