"""How many workers there should be, and which of them go. Pure: state and load in, state and steps out.

    wanted ──it joins──▶ live ──idle for long──▶ draining ──has no task──▶ stopping ──▶ gone
                          ▲──the wait is long───────┘

The signal is the predicted wait: what waits, in seconds of work, over the tasks that run side by side. A
worker is drained before it is stopped, and stopped only when it has no task.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

import msgspec

from gpu_orchestrator.apps.manager.autoscale.load import Load, Member

LEARNT = 0.3
"""How much the newest count of side-by-side tasks on a worker counts."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`target_s`: the wait that is fine. It must be longer for `patience_s` before workers are added, and a
    worker idle for `idle_s` before it goes. At most `step` come or go at once, and between two steps down lie
    `cool_down_s`."""

    least: int = 0
    most: int = 10
    target_s: float = 30.0
    patience_s: float = 10.0
    idle_s: float = 300.0
    cool_down_s: float = 60.0
    step: int = 4


class Leaving(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that goes. `told`: it was seen draining. `stopping`: its provisioner ends it. `kept`: it was
    taken back, and stays here until it takes tasks again."""

    name: str
    told: bool = False
    stopping: bool = False
    kept: bool = False


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the next leader must know. `wanted` is what the provisioner should run. Moments are by the store's
    clock, 0 for never. `side_by_side` is how many tasks a worker was seen to run at once."""

    wanted: int = 0
    leaving: tuple[Leaving, ...] = ()
    changed_s: float = 0.0
    side_by_side: float = 1.0
    long_since_s: float = 0.0
    idle_since_s: dict[str, float] = {}


Action = Literal["up", "keep", "drain", "stop"]


@dataclass(frozen=True, slots=True)
class Step:
    """`keep` takes back workers that were draining, `stop` ends drained ones. `before` and `after` are how
    many workers there should be."""

    action: Action
    before: int
    after: int
    workers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`drain` and `keep` are workers to be told so, also again if a leader was killed before it could.
    `ended` are those that went; one that comes back under such a name takes tasks. `why` says in words what
    is wanted and why, also if nothing is to be done. `wait_s` is infinite with nobody to work."""

    state: State
    steps: tuple[Step, ...]
    drain: tuple[str, ...]
    keep: tuple[str, ...]
    ended: tuple[str, ...]
    why: str
    wait_s: float
    side_by_side: float


def decide(state: State, load: Load, rules: Rules, now: float) -> Decision:
    """Return the next state, and the steps that lead to it."""
    names = {each.name for each in load.members}
    ended = tuple(each.name for each in state.leaving if each.name not in names)
    state = _observed(state, load, now)
    state, stopped = _stop_empty(state, load)
    gone = {each.name for each in state.leaving}
    live = [each for each in load.members if each.scaled and each.name not in gone and each.takes_tasks]
    others = [each for each in load.members if not each.scaled and each.takes_tasks]
    kept = sum(each.kept for each in state.leaving)
    coming = max(state.wanted - _running(state, load), 0) + kept
    now_beside = float(sum(max(each.active, 1) for each in (*live, *others)))
    soon_beside = now_beside + coming * state.side_by_side
    wait_s = 0.0 if not load.waiting else load.work_s / now_beside if now_beside else inf
    soon_s = 0.0 if not load.waiting else load.work_s / soon_beside if soon_beside else inf
    fleet = _Fleet(live, len(others), coming, soon_beside, soon_s)
    state, steps, why = _moved(state, load, rules, now, fleet)
    drain = tuple(each.name for each in state.leaving if not each.told and not each.kept)
    keep = tuple(each.name for each in state.leaving if each.kept)
    return Decision(state, (*stopped, *steps), drain, keep, ended, why, wait_s, now_beside)


@dataclass(frozen=True, slots=True)
class _Fleet:
    live: list[Member]
    others: int
    coming: int
    beside: float
    wait_s: float


def _observed(state: State, load: Load, now: float) -> State:
    """Take in who is there, who has nothing to do and since when, and how many tasks run side by side."""
    here = {each.name: each for each in load.members if each.scaled}
    leaving = tuple(
        _marked(each, told=each.told or here[each.name].draining)
        for each in state.leaving
        if each.name in here and _still_goes(each, here[each.name])
    )
    idle = {
        name: state.idle_since_s.get(name, now)
        for name, each in here.items()
        if not each.active and each.takes_tasks
    }
    busy = [each.active for each in here.values() if each.active]
    beside = state.side_by_side
    if load.waiting and busy:
        beside += (sum(busy) / len(busy) - beside) * LEARNT
    lost = sum(not each.stopping and each.name not in here for each in state.leaving)  # it went by itself
    there = msgspec.structs.replace(state, leaving=leaving)
    return msgspec.structs.replace(
        there,
        idle_since_s=idle,
        side_by_side=max(beside, 1.0),
        # Somebody may have started workers by hand: to want fewer than are there would end them.
        wanted=max(state.wanted - lost, _running(there, load)),
    )


def _still_goes(each: Leaving, member: Member) -> bool:
    """Return False of one that takes tasks again, because it was kept or an operator took it back."""
    return each.stopping or member.draining or not (each.told or each.kept)


def _running(state: State, load: Load) -> int:
    """Return how many workers of ours are online and are not being stopped."""
    stopping = {each.name for each in state.leaving if each.stopping}
    return sum(each.scaled and each.name not in stopping for each in load.members)


def _stop_empty(state: State, load: Load) -> tuple[State, tuple[Step, ...]]:
    """Stop workers that were seen draining and have no task."""
    here = {each.name: each for each in load.members}
    empty = tuple(
        each.name
        for each in state.leaving
        if each.told
        and not each.stopping
        and not each.kept
        and here[each.name].draining
        and not here[each.name].active
    )
    if not empty:
        return state, ()
    leaving = tuple(_marked(each, stopping=each.stopping or each.name in empty) for each in state.leaving)
    wanted = max(state.wanted - len(empty), 0)
    step = Step("stop", state.wanted, wanted, empty, "they are drained and have no task")
    return msgspec.structs.replace(state, leaving=leaving, wanted=wanted), (step,)


def _moved(
    state: State, load: Load, rules: Rules, now: float, fleet: _Fleet
) -> tuple[State, tuple[Step, ...], str]:
    staying = len(fleet.live) + fleet.coming
    is_long = load.waiting > 0 and fleet.wait_s > rules.target_s
    state = msgspec.structs.replace(state, long_since_s=(state.long_since_s or now) if is_long else 0.0)
    if staying < rules.least:
        why = f"at least {rules.least} workers are kept"
        return _more(state, rules, now, fleet, rules.least - staying, why)
    if is_long:
        return _for_long_wait(state, load, rules, now, fleet)
    if load.waiting:
        fine = f"the predicted wait is {_shown(fleet.wait_s)}, at most {_shown(rules.target_s)} is fine"
        return _fewer(state, rules, now, fleet, fine, least=1)
    return _fewer(state, rules, now, fleet, "nothing waits")


def _for_long_wait(
    state: State, load: Load, rules: Rules, now: float, fleet: _Fleet
) -> tuple[State, tuple[Step, ...], str]:
    long = f"the predicted wait is {_shown(fleet.wait_s)}, more than {_shown(rules.target_s)}"
    if idle := [each.name for each in fleet.live if not each.active]:
        settled = [name for name in idle if now - state.idle_since_s[name] > rules.patience_s]
        if settled:
            why = f"{long}, but {', '.join(settled[:3])} has nothing to do: more of the same do not help"
            return _fewer(state, rules, now, fleet, why, least=1)
        return state, (), f"{long}, and {', '.join(idle[:3])} takes up work"
    if fleet.beside and now - state.long_since_s < rules.patience_s:
        return state, (), f"{long}, since {_shown(now - state.long_since_s)}"
    beside = min(ceil(load.work_s / rules.target_s), load.waiting + load.running)
    missing = max(ceil((beside - fleet.beside) / state.side_by_side), 1)
    return _more(state, rules, now, fleet, missing, long)


def _more(
    state: State, rules: Rules, now: float, fleet: _Fleet, missing: int, why: str
) -> tuple[State, tuple[Step, ...], str]:
    """Take back workers that drain, and add new ones."""
    drained = [each.name for each in state.leaving if not each.stopping and not each.kept]
    back = tuple(drained[: min(missing, rules.step)])
    steps: list[Step] = []
    if back:
        steps.append(Step("keep", state.wanted, state.wanted, back, why))
        leaving = tuple(_marked(each, kept=each.kept or each.name in back) for each in state.leaving)
        state = msgspec.structs.replace(state, leaving=leaving)
    most = max(rules.most - fleet.others, 0)
    new = max(min(missing - len(back), rules.step - len(back), most - state.wanted), 0)
    if new:
        steps.append(Step("up", state.wanted, state.wanted + new, (), why))
        # Their load shows only once they have joined; the wait is judged with them meanwhile.
        state = msgspec.structs.replace(state, wanted=state.wanted + new, changed_s=now, long_since_s=0.0)
    elif not back:
        why = f"{why}, but {state.wanted} of at most {most} are there or coming"
    return state, tuple(steps), why


def _fewer(
    state: State, rules: Rules, now: float, fleet: _Fleet, else_: str, *, least: int = 0
) -> tuple[State, tuple[Step, ...], str]:
    """Drain workers that had nothing to do for long, those first that have been idle longest. `else_` is what
    to say if none goes. Tasks may wait meanwhile that these workers cannot take: then one stays, or it would
    be started again at once, and none of the others is kept for them."""
    since = state.idle_since_s
    idle = sorted(
        (each.name for each in fleet.live if not each.active and now - since[each.name] >= rules.idle_s),
        key=lambda name: (since[name], name),
    )
    spare = len(fleet.live) + fleet.coming - max(rules.least, least)
    if not idle or spare <= 0:
        return state, (), else_
    if fleet.coming or now - state.changed_s < rules.cool_down_s:
        return state, (), f"{else_}; the last change was a moment ago"
    names = tuple(idle[: min(spare, rules.step)])
    leaving = (*state.leaving, *(Leaving(name) for name in names))
    why = f"they had nothing to do for {_shown(rules.idle_s)}"
    step = Step("drain", state.wanted, state.wanted - len(names), names, why)
    return msgspec.structs.replace(state, leaving=leaving, changed_s=now), (step,), why


def _marked(each: Leaving, **changes: bool) -> Leaving:
    return msgspec.structs.replace(each, **changes)


def _shown(seconds: float) -> str:
    return "endless" if seconds == inf else f"{seconds:.1f} s"
