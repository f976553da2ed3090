"""How many workers there should be: tables, and a fleet that is played through with virtual time."""

from dataclasses import dataclass, field, replace
from math import inf
from random import Random

import pytest
from msgspec import structs

from gpu_orchestrator.apps.manager.autoscale.decision import Leaving, Rules, State, decide
from gpu_orchestrator.apps.manager.autoscale.load import Load, Member

RULES = Rules(least=0, most=5, target_s=10, patience_s=3, idle_s=20, cool_down_s=5, step=2)
NOW = 1000.0


def member(name: str, active: int = 0, **rest: object) -> Member:
    return replace(Member(name, active=active), **rest)  # type: ignore[arg-type]


def load(waiting: int = 0, work_s: float = 0.0, *members: Member, running: int | None = None) -> Load:
    running = sum(each.active for each in members) if running is None else running
    return Load(waiting, running, work_s, members)


LONG = State(wanted=1, long_since_s=NOW - 4)


@pytest.mark.parametrize(
    ("state", "now", "wanted", "steps", "why"),
    [
        pytest.param(State(), load(), 0, [], "nothing waits", id="nothing to do"),
        pytest.param(State(), load(1, 1.0), 1, ["up"], "endless", id="from zero at once"),
        pytest.param(State(), load(1, 0.0), 1, ["up"], "endless", id="from zero for tasks that take no time"),
        pytest.param(State(), load(40, 40.0), 2, ["up"], "endless", id="a step at a time"),
        pytest.param(State(), load(1, 500.0), 1, ["up"], "endless", id="no more workers than tasks"),
        pytest.param(
            State(wanted=1), load(9, 9.0), 1, [], "at most 10.0 s is fine", id="one comes and is enough"
        ),
        pytest.param(
            State(wanted=1), load(5, 50.0, member("a", 1)), 1, [], "since 0.0 s", id="long, just now"
        ),
        pytest.param(
            LONG, load(5, 50.0, member("a", 1)), 3, ["up"], "the predicted wait is 50.0 s", id="long"
        ),
        pytest.param(LONG, load(5, 15.0, member("a", 1)), 2, ["up"], "15.0 s, more", id="as many as needed"),
        pytest.param(LONG, load(5, 9.0, member("a", 1)), 1, [], "9.0 s, at most", id="short enough"),
        pytest.param(
            LONG,
            load(5, 50.0, member("a", 1), member("b", 1, scaled=False)),
            3,
            ["up"],
            "25.0 s",
            id="others help",
        ),
        pytest.param(
            State(wanted=1, long_since_s=NOW - 4, idle_since_s={"a": NOW - 9}),
            load(5, 50.0, member("a")),
            1,
            [],
            "a has nothing to do: more of the same do not help",
            id="an idle worker does not take it",
        ),
        pytest.param(
            State(wanted=5, long_since_s=NOW - 4),
            load(50, 500.0, *(member(name, 1) for name in "abcde")),
            5,
            [],
            "5 of at most 5",
            id="at the bound",
        ),
        pytest.param(
            State(wanted=4, long_since_s=NOW - 4),
            load(50, 500.0, *(member(name, 1) for name in "abcd"), member("x", 1, scaled=False)),
            4,
            [],
            "4 of at most 4",
            id="others count to the bound",
        ),
        pytest.param(
            State(wanted=2, leaving=(Leaving("b", told=True),), long_since_s=NOW - 4),
            load(5, 50.0, member("a", 1), member("b", 1, draining=True)),
            3,
            ["keep", "up"],
            "the predicted wait",
            id="what drains is taken back first",
        ),
    ],
)
def test_up(state: State, now: Load, wanted: int, steps: list[str], why: str) -> None:
    made = decide(state, now, RULES, NOW)
    assert (made.state.wanted, [each.action for each in made.steps]) == (wanted, steps)
    assert why in " ".join([made.why, *(each.reason for each in made.steps)])


IDLE = State(wanted=2, idle_since_s={"a": NOW - 21, "b": NOW - 30})


@pytest.mark.parametrize(
    ("state", "now", "drained", "wanted"),
    [
        pytest.param(
            IDLE, load(0, 0.0, member("a"), member("b")), ("b", "a"), 2, id="to zero, longest idle first"
        ),
        pytest.param(IDLE, load(0, 0.0, member("a", 1), member("b")), ("b",), 2, id="not the busy one"),
        pytest.param(
            IDLE,
            load(1, 1.0, member("a"), member("b")),
            ("b",),
            2,
            id="all but one beside a task they cannot take",
        ),
        pytest.param(IDLE, load(1, 99.0, member("a"), member("b")), ("b",), 2, id="also if its wait is long"),
        pytest.param(IDLE, load(1, 1.0, member("a"), member("b", 1)), ("a",), 2, id="the busy one stays"),
        pytest.param(
            State(wanted=2), load(0, 0.0, member("a"), member("b")), (), 2, id="idle since just now"
        ),
        pytest.param(
            State(wanted=3, idle_since_s=IDLE.idle_since_s),
            load(0, 0.0, member("a")),
            (),
            3,
            id="not while one comes",
        ),
        pytest.param(
            State(wanted=2, changed_s=NOW - 1, idle_since_s=IDLE.idle_since_s),
            load(0, 0.0, member("a"), member("b")),
            (),
            2,
            id="not so soon after a change",
        ),
        pytest.param(
            IDLE, load(0, 0.0, member("a"), member("b", scaled=False)), ("a",), 1, id="never others"
        ),
    ],
)
def test_drained(state: State, now: Load, drained: tuple[str, ...], wanted: int) -> None:
    made = decide(structs.replace(state, wanted=wanted), now, RULES, NOW)
    assert tuple(name for each in made.steps if each.action == "drain" for name in each.workers) == drained
    assert made.drain == drained
    assert {each.name for each in made.state.leaving} == set(drained)


def test_least_workers_stay_and_come() -> None:
    rules = replace(RULES, least=2)
    assert decide(State(), load(), rules, NOW).state.wanted == 2
    made = decide(IDLE, load(0, 0.0, member("a"), member("b")), rules, NOW)
    assert (made.steps, made.state.wanted) == ((), 2)


def test_drained_worker_stops_only_when_it_was_seen_draining_and_has_no_task() -> None:
    state = State(wanted=1, leaving=(Leaving("a"),))
    made = decide(state, load(0, 0.0, member("a")), RULES, NOW)
    assert (made.drain, made.steps) == (("a",), ())  # told again: a leader may have died before it could
    made = decide(made.state, load(0, 0.0, member("a", 1, draining=True)), RULES, NOW)
    assert (made.drain, made.steps, made.state.leaving[0].told) == ((), (), True)
    made = decide(made.state, load(0, 0.0, member("a", draining=True)), RULES, NOW)
    assert ([each.action for each in made.steps], made.state.wanted) == (["stop"], 0)
    assert made.state.leaving == (Leaving("a", told=True, stopping=True),)
    made = decide(made.state, load(), RULES, NOW)
    assert (made.steps, made.state.leaving, made.state.wanted, made.ended) == ((), (), 0, ("a",))


def test_worker_that_an_operator_takes_back_stays() -> None:
    state = State(wanted=1, leaving=(Leaving("a", told=True),))
    made = decide(state, load(0, 0.0, member("a")), RULES, NOW)
    assert (made.state.leaving, made.state.wanted, made.drain) == ((), 1, ())


def test_workers_started_by_hand_are_wanted() -> None:
    made = decide(State(wanted=1), load(0, 0.0, *(member(name, 1) for name in "abc")), RULES, NOW)
    assert made.state.wanted == 3


def test_wait_is_endless_with_nobody_to_work() -> None:
    made = decide(State(), load(2, 2.0), RULES, NOW)
    assert (made.wait_s, made.side_by_side) == (inf, 0.0)


@dataclass
class Fleet:
    """Workers that take a task each, need a while to start, and lose what they run if they end early."""

    chance: Random
    queue: int = 0
    busy: dict[str, float] = field(default_factory=dict)
    coming: list[float] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    done: int = 0
    count: int = 0
    most: int = 0

    def pass_time(self, now: float, task_s: float) -> None:
        for name in [name for name, until in self.busy.items() if until <= now]:
            del self.busy[name]
            self.idle.add(name)
            self.done += 1
        for at in [at for at in self.coming if at <= now]:
            self.coming.remove(at)
            self.count += 1
            self.idle.add(f"w{self.count}")
        for name in sorted(self.idle - self.draining):
            if self.queue:
                self.queue -= 1
                self.idle.discard(name)
                self.busy[name] = now + task_s
        self.most = max(self.most, len(self.busy) + len(self.idle))

    def load(self, task_s: float) -> Load:
        here = [*self.busy, *self.idle]
        members = [Member(each, int(each in self.busy), each in self.draining) for each in sorted(here)]
        return Load(self.queue, len(self.busy), self.queue * task_s, tuple(members))


@pytest.mark.parametrize("seed", range(20))
def test_played_fleet_grows_serves_everything_shrinks_to_zero_and_loses_no_task(seed: int) -> None:
    chance = Random(seed)
    fleet, state, asked, actions = Fleet(chance), State(), 0, []
    for tick in range(2000):
        now, task_s = 10_000 + tick * 1.0, 4.0
        if tick < 1000 and chance.random() < (0.6 if tick % 300 < 150 else 0.02):
            new = chance.randrange(4)
            fleet.queue, asked = fleet.queue + new, asked + new
        fleet.pass_time(now, task_s)
        made = decide(state, fleet.load(task_s), RULES, now)
        if chance.random() < 0.05:
            continue  # the leader dies before it has stored anything
        state = made.state
        actions += [each.action for each in made.steps]
        if chance.random() < 0.05:
            continue  # it dies after that, before it has done anything
        fleet.draining |= set(made.drain)
        fleet.draining -= set(made.keep)
        for each in state.leaving:
            if each.stopping:
                assert each.name not in fleet.busy, "work would be killed"
                fleet.idle.discard(each.name)
                fleet.draining.discard(each.name)
        staying = {*fleet.busy, *fleet.idle}
        fleet.coming += [now + 5.0] * (state.wanted - len(staying) - len(fleet.coming))
        assert state.wanted <= RULES.most
    assert fleet.done == asked > 300
    assert fleet.most <= RULES.most
    assert (fleet.busy, fleet.idle, state.wanted) == ({}, set(), 0)
    assert actions.count("up") >= 3
    assert len(actions) < 200, "it swings"
