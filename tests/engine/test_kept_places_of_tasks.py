"""Places that are kept with the cluster manager's order: for tasks alone that were passed, beside tasks that
name models, and not for owners at their limit."""

from typing import Any

import pytest

from gpu_orchestrator.core.copies import Copy
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.events import (
    CopiesObserved,
    LimitChanged,
    NodeRemoved,
    NodeUpdated,
    RequestAdded,
)
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from tests.support.builders import node, request
from tests.support.kept_world import World

RULES = ReservationRules(most=4, holds=1, hold_after_s=300.0, hold_s=600.0, only_passed=True)
MIB = 80_000


def world(workers: int = 1, gpus: int = 2, **options: Any) -> World:
    nodes = [node(f"w{each}", gpus, memory_mib=MIB) for each in range(workers)]
    return World(*nodes, rules=RULES, order=FairBands(), explains=False, **options)


def passed(workers: int = 1, gpus: int = 2, **large: Any) -> World:
    """Return a world in which a task of all GPUs was passed by small ones, and has a place now."""
    found = world(workers, gpus)
    fill(found, workers, gpus)
    found.ask("big", gpus, run_s=600.0, tenant="one", **large)
    pass_by(found, workers, gpus)
    assert "big" in found.kept
    return found


def fill(found: World, workers: int = 1, gpus: int = 2) -> None:
    for number in range(workers * gpus):
        assert found.ask(f"first{number}", 1, run_s=300.0, tenant="many")


def pass_by(found: World, workers: int = 1, gpus: int = 2) -> None:
    """End and begin small ones until all are others, or a place is kept."""
    for number in range(workers * gpus):
        if found.kept:
            return
        found.end(f"first{number}", after_s=1.0)
        found.ask(f"next{number}", 1, run_s=300.0, tenant="many")
        found.wait(6.0)


def end_one(found: World) -> None:
    found.end(next(iter(found.running)), after_s=1.0)


def test_task_that_was_not_passed_has_no_place() -> None:
    found = world()
    for number in range(2):
        found.ask(f"both{number}", 2, run_s=300.0)
    for number in range(10):
        found.end(f"both{number}", after_s=1.0)
        found.ask(f"both{number + 2}", 2, run_s=300.0)
        found.wait(6.0)
        assert found.kept == {}, "all are alike"


def test_task_whose_turn_has_not_come_has_no_place() -> None:
    found = world()
    fill(found)
    for number in range(5):
        found.ask(f"before{number}", 1, run_s=300.0, tenant="many")
    found.ask("big", 2, run_s=600.0, tenant="many")
    for _ in range(5):
        end_one(found)
        found.ask(f"after{found.now}", 1, run_s=300.0, tenant="many")
        found.wait(6.0)
        assert found.kept == {}
    assert "before4" in found.running
    end_one(found)
    found.wait(6.0)
    end_one(found)
    found.wait(6.0)
    assert "big" in {*found.kept, *found.running}


def test_task_that_small_ones_pass_elsewhere_has_no_place() -> None:
    """Others begin on a worker that does not suit it: it loses nothing."""
    found = world()
    found.tell(NodeUpdated(node("pool", 2, labels={"pool": "x"})))
    found.ask("busy", 2, labels={"pool": "x"}, run_s=300.0)
    found.ask("big", 2, labels={"pool": "x"}, run_s=300.0)
    fill(found)
    pass_by(found)
    assert found.kept == {}
    assert "big" not in found.running


def test_who_was_passed_is_told_of_its_place_and_others_of_no_names() -> None:
    found = passed()
    assert found.engine.note("big").startswith("waits: its place on w0 is kept from ")
    found.end(*found.running, after_s=1.0)
    assert "big" in found.running


def test_engine_rests_when_all_of_a_place_is_freed_in_one_moment() -> None:
    """Those whom it was to be offered to next are not looked for once its owner has begun."""
    found = passed()
    found.ask("small", 1, run_s=300.0, tenant="many")
    found.end(next(iter(found.running)), after_s=1.0)
    found.end(next(iter(found.running)))
    assert list(found.running) == ["big"]
    found.wait(1.0)


def test_cancelled_task_leaves_its_place_to_others() -> None:
    found = passed()
    end_one(found)
    assert not found.ask("small", 1, run_s=300.0, tenant="many")
    found.end("big", after_s=1.0)
    assert "small" in found.running
    assert found.kept == {}


def test_place_moves_when_its_worker_is_drained() -> None:
    found = passed(workers=2)
    (where,) = found.kept["big"][1]
    found.tell(NodeUpdated(node(where, 2, memory_mib=MIB, schedulable=False)))
    found.wait(6.0)
    assert found.kept["big"][1] == {"w0", "w1"} - {where}


def test_place_goes_with_its_worker() -> None:
    found = passed()
    found.tell(NodeRemoved("w0"))
    found.wait(6.0)
    assert found.kept == {}


def test_owner_at_the_limit_has_no_place() -> None:
    found = passed()
    found.tell(LimitChanged("one", 0))
    assert found.kept == {}
    end_one(found)
    assert found.ask("small", 1, run_s=300.0, tenant="many")
    found.tell(LimitChanged("one", None))
    found.wait(6.0)
    assert "big" in found.kept


def test_gang_of_more_members_than_its_owner_may_run_has_no_place() -> None:
    found = world()
    found.tell(LimitChanged("one", 1))
    fill(found)
    terms = GangTerms("g", 2)
    found.tell(*(RequestAdded(request(f"g{at}", 1, gang=terms, tenant="one", run_s=9.0)) for at in range(2)))
    pass_by(found)
    assert found.kept == {}
    found.tell(LimitChanged("one", 2))
    end_one(found)
    found.ask("small", 1, run_s=300.0, tenant="many")
    found.wait(12.0)
    assert found.kept.keys() <= {"g"}
    found.end(*found.running, after_s=1.0)
    assert {"g0", "g1"} <= set(found.running)


@pytest.mark.parametrize("huge", [3, 100])
def test_tasks_that_never_fit_have_no_place_and_do_not_hide_one_that_can(huge: int) -> None:
    found = world()
    fill(found)
    for number in range(huge):
        found.ask(f"huge{number}", 3 + number, run_s=300.0, tenant="one")
    found.ask("big", 2, run_s=600.0, tenant="one")
    pass_by(found)
    for number in range(12):
        found.wait(6.0)
        assert found.kept.keys() <= {"big"}
        if not found.kept:
            end_one(found)
            found.ask(f"more{number}", 1, run_s=300.0, tenant="many")
    assert "big" in found.kept


# --- tasks that name models --------------------------------------------------------------------------------


def model(found: World, key: str, **rest: Any) -> bool:
    return found.ask(key, 1, shared=True, memory_mib=MIB, model="m", tenant="many", **rest)


def test_task_of_a_higher_band_that_names_a_model_is_not_kept_out() -> None:
    found = passed(priority=50)
    end_one(found)
    assert model(found, "urgent", priority=90, run_s=300.0)


def test_task_that_names_a_model_is_let_in_if_it_ends_before() -> None:
    found = passed(priority=50)
    end_one(found)
    assert not model(found, "long", priority=50, run_s=900.0)
    assert model(found, "short", priority=50, run_s=10.0)
    found.end("short", after_s=1.0)
    assert "long" not in found.running


def test_task_that_is_let_in_does_not_let_in_a_later_one_whose_model_is_loaded() -> None:
    found = passed(priority=50)
    (free,) = {0, 1} - {at for each in list(found.running.values())[1:] for at in each.devices}
    end_one(found)
    found.tell(CopiesObserved("w0", (Copy("m", (free,), MIB, load_s=30.0, loaded_at=-100.0),)))
    assert not model(found, "long", priority=50, run_s=900.0)
    found.ask("x", 1, shared=True, memory_mib=MIB, model="x", tenant="many", priority=50, run_s=10.0)
    assert "long" not in found.running


def test_what_a_pinned_model_holds_is_no_place() -> None:
    """The task on it ends, and then the model stays."""
    found = world(workers=2)
    found.tell(CopiesObserved("w0", (Copy("m", (0,), MIB, load_s=1.0, loaded_at=-100.0, pinned=True),)))
    assert model(found, "on-the-pinned", run_s=20.0)
    assert found.running["on-the-pinned"].node == "w0"
    for number in range(3):
        assert found.ask(f"first{number}", 1, run_s=300.0, tenant="many")
    found.ask("big", 2, run_s=600.0, tenant="one")
    firsts = [each for each in found.running.items() if each[0].startswith("first")]
    for key, where in firsts:
        found.end(key, after_s=1.0)
        found.ask(f"next-{key}", 1, run_s=10.0 if where.node == "w0" else 300.0, tenant="many")
        found.wait(2.0)
    assert found.kept["big"][1] == {"w1"}
