"""Random streams of requests through an engine that keeps places: promises are kept, nothing is given twice,
and no request starves."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.events import RequestAdded
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from tests.support.builders import request
from tests.support.examples import cases
from tests.support.virtual_play import Play

GPUS = 4
NAMES = ("a", "b", "c")
SEEDS = st.integers(0, 10**6)


class Promises(Play):
    """`promised` has the first moment that was promised to a request or gang while it was the first of all
    that waited: those before it in turn may take its place."""

    def __init__(self, rng: Random, nodes: int, **rules: Any) -> None:
        self.promised, self.arrived = dict[str, float](), dict[str, int]()
        super().__init__(rng, [node(name, GPUS) for name in NAMES[:nodes]], ReservationRules(**rules))

    def arrives(self, event: RequestAdded) -> None:
        self.arrived[event.request.key] = int(event.request.key[1:].partition("/")[0])

    def looks(self) -> None:
        waits = {key: first for key, first in self.arrived.items() if key not in self.began}
        for kept in self.engine.kept():
            key = kept.waiting.request.key
            if not kept.is_hold and not kept.is_broken and waits and waits.get(key) == min(waits.values()):
                self.promised.setdefault(kept.name, kept.at)


@cases(100)
@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 40))
def test_nobody_starts_later_than_first_promised(seed: int, nodes: int, most: int, length: int) -> None:
    rng = Random(seed)
    play, now = Promises(rng, nodes, most=most, holds=1, hold_after_s=50.0, hold_s=20.0), 0.0
    names = dict[str, str]()
    for number in range(length):
        now += rng.choice((0.0, 1.0, 7.0))
        members = rng.choice((1, 1, 1, 2))
        gpus = rng.choice((1, 1, 2, 3, 4))
        declared_s = float(rng.choice((5, 20, 60, 100)))
        terms = GangTerms(f"g{number}", members) if members > 1 else None
        for member in range(members):
            key = f"r{number}/{member}"
            names[key] = terms.name if terms else key
            play.real_s[key] = declared_s * rng.choice((0.3, 0.9, 1.0))
            play.at(now, RequestAdded(request(key, gpus, run_s=declared_s, gang=terms)))
    play.run(1e6)
    fits = {key for key in names if key in play.began}
    for key in fits:
        assert play.began[key] <= play.promised.get(names[key], 1e9) + 1e-6, (key, play.promised)
    assert play.held == {}
    assert play.engine.kept() == []


@cases(30)
@given(SEEDS, st.integers(1, 3), st.sampled_from((10.0, 400.0)))
def test_no_stream_of_small_ones_starves_a_large_one(seed: int, nodes: int, run_s: float) -> None:
    """Nobody declares anything, and the small ones never stop coming."""
    rng = Random(seed)
    play = Promises(rng, nodes, most=2, holds=1, hold_after_s=100.0, hold_s=50.0)
    until, every_s = 400.0 + 14.0 * run_s, run_s / (nodes * GPUS) / 1.2
    now, number = 0.0, 0
    while now < until:
        key = f"s{number}"
        play.real_s[key] = run_s * rng.uniform(0.5, 1.0)
        play.at(now, RequestAdded(request(key, 1)))
        now, number = now + every_s, number + 1
    play.real_s["b0"] = 100.0
    play.at(run_s, RequestAdded(request("b0", GPUS)))
    play.run(until)
    assert "b0" in play.began


@cases(30)
@given(SEEDS, st.integers(1, 3), st.sampled_from((1, 2, 3)), st.booleans(), st.booleans())
def test_small_tasks_pass_a_large_one_or_a_gang_for_a_bounded_time(
    seed: int, nodes: int, members: int, is_shared: bool, has_small_ones: bool
) -> None:
    """In the order of the cluster manager. The owner of the large one may have small ones as well."""
    rng, timeout_s = Random(seed), 60.0
    workers = [node(name, GPUS, memory_mib=80_000) for name in NAMES[:nodes]]
    rules = ReservationRules(most=2, holds=1, only_passed=True)
    play = Play(rng, workers, rules, order=FairBands(), explains=False)
    parts = 2 if is_shared else 1
    kind: dict[str, Any] = {"shared": True, "memory_mib": 40_000} if is_shared else {}
    owners = ("many", "one") if has_small_ones else ("many",)
    now, number, until = 0.0, 0, 300.0
    while now < until:
        key, declared_s = f"s{number}", rng.choice((5.0, 20.0, timeout_s))
        play.real_s[key] = declared_s * rng.uniform(0.2, 1.0)
        owner = rng.choice(owners)
        play.at(now, RequestAdded(request(key, 1, run_s=declared_s, tenant=owner, **kind)))
        now, number = now + 17.0 / (nodes * GPUS * parts), number + 1
    terms = GangTerms("g", nodes * members) if members > 1 else None
    keys = [f"b{each}" for each in range(terms.least if terms else 1)]
    play.real_s |= dict.fromkeys(keys, 10.0)
    gpus = GPUS // members
    play.at(50.0, *(RequestAdded(request(each, gpus, tenant="one", run_s=90.0, gang=terms)) for each in keys))
    play.run(until)
    began = {play.began.get(each, until) for each in keys}
    assert len(began) == 1, "all or none"
    assert began.pop() < until
