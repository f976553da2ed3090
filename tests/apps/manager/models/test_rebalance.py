"""Which models move, and why."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpu_orchestrator.apps.manager.models.rebalance import (
    MOST_MOVES,
    Holder,
    LoadedCopy,
    Strategy,
    has_room,
    plan,
)
from tests.support.scale import Scale

GIB = 1024


def copy(model: str, gib: int = 6, *devices: int, **rest: Any) -> LoadedCopy:
    return replace(LoadedCopy(model, "chat", gib * GIB, devices or (0,)), **rest)


def holder(name: str, *copies: LoadedCopy, gib: int = 20, gpus: int = 1, **rest: Any) -> Holder:
    free = tuple(
        gib * GIB - sum(each.mib for each in copies if device in each.devices) for device in range(gpus)
    )
    made = Holder(name, gpus * gib * GIB, free, copies=copies, handlers=frozenset({"chat"}))
    return replace(made, **rest)


FULL = holder("full", copy("a"), copy("b"), copy("c"))


@pytest.mark.parametrize(
    ("others", "strategy", "force", "moved"),
    [
        pytest.param([holder("twin")], "memory_optimized", False, ["a twin"], id="to the empty twin"),
        pytest.param([replace(FULL, name="twin")], "memory_optimized", False, [], id="both full"),
        pytest.param([holder("twin", takes_tasks=False)], "memory_optimized", False, [], id="drained"),
        pytest.param([holder("twin", pool="gold")], "memory_optimized", False, [], id="another pool"),
        pytest.param(
            [holder("twin", handlers=frozenset())], "memory_optimized", False, [], id="cannot load it"
        ),
        pytest.param([holder("twin", gib=5)], "memory_optimized", False, [], id="too small"),
        pytest.param([holder("twin", most_models=0)], "memory_optimized", False, [], id="holds no models"),
        pytest.param(
            [holder("twin", copy("a"))], "memory_optimized", False, ["b twin"], id="not what is there already"
        ),
        pytest.param([], "memory_optimized", False, [], id="alone"),
    ],
)
def test_full_worker(others: list[Holder], strategy: Strategy, force: bool, moved: list[str]) -> None:
    found = plan([FULL, *others], strategy, force=force)
    assert [f"{each.copy.model} {each.target}" for each in found] == moved
    for each in found:
        assert each.benefit > 0
        assert "full: 90% of its memory is held, more than 80%; twin has" in each.reason


@pytest.mark.parametrize("mark", ["busy", "pinned"])
def test_busy_and_pinned_copies_stay_without_force(mark: str) -> None:
    held = holder("full", copy("a", 9, **{mark: True}), copy("b", 9, **{mark: True}))
    assert plan([held, holder("twin")], "memory_optimized") == []
    assert [each.copy.model for each in plan([held, holder("twin")], "memory_optimized", force=True)] == ["a"]


def test_load_evens_out_by_the_uses_of_models() -> None:
    busy = holder("busy", copy("hot", 4, uses=9.0), copy("cold", 4, uses=1.0), load=1.0)
    found = plan([busy, holder("idle", load=0.0)], "load")
    assert [each.copy.model for each in found] in (["cold"], ["hot"]), "one of them, for either is as even"
    assert "its load is 1.00, the average 0.50" in found[0].reason
    assert plan([busy, replace(holder("also", load=0.9), copies=busy.copies)], "load") == []


def test_number_of_models_evens_out() -> None:
    many = holder("many", *(copy(name, 1) for name in "abcd"))
    found = plan([many, holder("none")], "models")
    assert 1 <= len(found) <= 2
    assert "it has 4 models, the average is 2.0" in found[0].reason


def test_copy_on_two_devices_needs_two() -> None:
    wide = holder("wide", copy("a", 17, 0, 1), gpus=2)
    assert plan([wide, holder("narrow")], "memory_optimized") == []
    assert not has_room(holder("narrow"), wide, wide.copies[0])
    assert len(plan([wide, holder("other", gpus=2)], "memory_optimized")) == 0, "the other would be as full"


@pytest.mark.parametrize("seed", range(30))
def test_random_fleets_end_more_even_and_within_bounds(seed: int) -> None:
    chance = Random(seed)
    fleet = [
        holder(
            f"w{at}",
            *(
                copy(f"m{at}-{n}", chance.randint(1, 4), load_s=chance.random())
                for n in range(chance.randrange(5))
            ),
            load=chance.random(),
        )
        for at in range(chance.randint(2, 30))
    ]
    strategy: Strategy = chance.choice(["memory_optimized", "load", "models"])
    found = plan(fleet, strategy)
    assert len(found) <= MOST_MOVES
    held = {each.name: sum(one.mib for one in each.copies) for each in fleet}
    for move in found:
        assert move.benefit > 0
        held[move.source] -= move.copy.mib
        held[move.target] += move.copy.mib
    assert all(0 <= mib <= 20 * GIB for mib in held.values())
    assert len({(each.copy.model, each.source) for each in found}) == len(found)


def test_plan_for_a_thousand_workers_looks_at_few(scale: Scale) -> None:
    """Half of them full, and no room anywhere but on the last: a look at all pairs would never end."""
    count = scale(test=400, accept=5000)
    full = [replace(FULL, name=f"f{at}") for at in range(count)]
    others = [holder(f"o{at}", copy("x", 15)) for at in range(count)]
    found = plan([*full, *others, holder("empty")], "memory_optimized")
    assert {each.target for each in found} == {"empty"}
