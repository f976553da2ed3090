"""Where requests that name a model go: to a loaded copy, to a new one, or they wait. Time is an argument."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.copies import Copy
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import Request, Shape, request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.models import ModelRules
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry
from tests.support.scale import Scale

GIB = 1024
SERVICE_S, LOAD_S = 1.0, 10.0


class World:
    """An engine with workers of one GPU of 24 GiB and one slot each; what is placed runs until `end`."""

    def __init__(self, workers: int = 1, *, slots: int = 1, gpus: int = 1, **rules: float) -> None:
        self.now = 0.0
        order, rules_ = FairBands(), ModelRules(**rules)  # type: ignore[arg-type]
        self.engine = Engine(
            Registry().policy_of, random.Random(1), order=order, explains=False, models=rules_
        )
        self.running: dict[str, Placement] = {}
        self.began: list[str] = []
        for number in range(workers):
            name = "abcdef"[number]
            self.tell(events.NodeUpdated(node(name, gpus, memory_mib=24 * GIB, resources={"slots": slots})))

    def tell(self, *said: events.Event, after_s: float = 0.0) -> list[str]:
        """Return what began because of it, as `key@worker`."""
        self.now += after_s
        began, pending = [], list(said)
        while pending:
            actions = self.engine.handle_all(pending, self.now)
            places = [each for each in actions if isinstance(each, events.Place)]
            began += [f"{each.request.key}@{each.placement.node}" for each in places]
            self.running |= {each.request.key: each.placement for each in places}
            pending = [events.Placed(each.request.key) for each in places]
        self.began += began
        return began

    def ask(self, *keys: str, gib: int = 16, **rest: object) -> list[str]:
        """Ask for the model that the key's first letter names; a key with `-` names none."""
        asked = [task(key, gib, **rest) for key in keys]
        return self.tell(*[events.RequestAdded(each) for each in asked])

    def end(self, key: str, after_s: float = SERVICE_S) -> list[str]:
        del self.running[key]
        return self.tell(events.RequestRemoved(key), after_s=after_s)

    def has(self, worker: str, *copies: Copy, most: int = 0) -> list[str]:
        return self.tell(events.CopiesObserved(worker, copies, most))

    def wait(self) -> list[str]:
        deadline = self.engine.deadline(self.now)
        assert deadline is not None
        return self.tell(events.Tick(), after_s=deadline - self.now)


def task(key: str, gib: int = 16, **rest: object) -> Request:
    model = "" if key.startswith("-") else key[0]
    return request(
        key,
        1,
        shared=True,
        memory_mib=gib * GIB,
        resources={"slots": 1},
        model=model,
        **rest,  # type: ignore[arg-type]
    )


def copy(model: str, gib: int = 16, **fields: object) -> Copy:
    known = Copy(model, (0,), gib * GIB, load_s=LOAD_S, loaded_at=-100.0)
    return replace(known, **fields)  # type: ignore[arg-type]


def test_idle_copy_is_used_before_an_empty_worker() -> None:
    world = World(3)
    world.has("b", copy("x"))
    assert world.ask("x1") == ["x1@b"]


def test_request_waits_for_a_busy_copy_that_is_free_before_another_is_loaded() -> None:
    world = World(2)
    world.has("a", copy("x"))
    assert world.ask("x1", "x2") == ["x1@a"]
    assert world.end("x1") == ["x2@a"]


def test_cold_worker_wins_when_loading_is_cheaper_than_waiting() -> None:
    world = World(2)
    world.has("a", copy("x", load_s=0.2))
    assert world.ask("x1", "x2") == ["x1@a", "x2@b"]


def test_long_line_makes_a_later_request_load_another_copy() -> None:
    world = World(2)
    world.has("a", copy("x"))
    began = world.ask("x0", *(f"x{number}" for number in range(1, 20)))
    assert began[0] == "x0@a"
    (second,) = began[1:]
    assert second.endswith("@b")
    assert 8 <= int(second[1:-2]) <= 12, "the first whose wait on the busy copy is longer than a load of 10 s"


def test_copy_that_takes_longer_than_expected_is_given_up() -> None:
    world = World(2)
    world.has("a", copy("x"))
    assert world.ask("x1", "x2") == ["x1@a"]
    for _ in range(200):
        if world.wait():
            break
    assert world.began[-1] == "x2@b"
    assert world.now < 40


def test_loaded_model_goes_before_older_requests_for_another() -> None:
    world = World()
    world.has("a", copy("x"))
    world.ask("x1")
    assert world.ask("y1", "x2", "x3") == []
    assert world.end("x1") == ["x2@a"]
    assert world.end("x2") == ["x3@a"]
    assert world.end("x3") == ["y1@a"]


def test_nobody_is_passed_by_more_than_the_rules_allow() -> None:
    world = World(most_passed=3)
    world.has("a", copy("x"))
    world.ask("x0")
    world.ask("y1", *(f"x{number}" for number in range(1, 9)))
    began = [world.end(f"x{number}") for number in range(4)]
    assert began == [["x1@a"], ["x2@a"], ["x3@a"], ["y1@a"]]


def test_request_that_passes_more_than_allowed_waits_for_its_turn() -> None:
    world = World(most_passed=3)
    world.has("a", copy("x"))
    world.ask("x0")
    world.ask("y1", "y2", "y3", "y4", "x1")
    assert world.end("x0") == ["y1@a"]


def test_nobody_is_passed_after_half_of_the_longest_wait() -> None:
    world = World(max_wait_s=20.0)
    world.has("a", copy("x"))
    world.ask("x0")
    world.ask("y1", *(f"x{number}" for number in range(1, 30)))
    began = [world.end(f"x{number}") for number in range(10)]
    assert began[-1] == ["y1@a"]
    assert world.now == 10.0


def test_higher_band_is_never_passed() -> None:
    world = World()
    world.has("a", copy("x"))
    world.ask("x0")
    world.ask("x1")
    world.ask("y1", priority=80)
    assert world.end("x0") == ["y1@a"]


def test_ordinary_request_takes_an_idle_copys_memory_if_there_is_no_other() -> None:
    world = World(2)
    world.has("a", copy("x"))
    assert world.ask("-1", "-2") == ["-1@b", "-2@a"]


def test_ordinary_request_takes_a_device_without_a_copy() -> None:
    world = World(gpus=2, slots=4)
    world.has("a", copy("x"))
    world.ask("-1")
    assert world.running["-1"].devices == (1,)


def test_pinned_copy_keeps_its_memory_and_serves_its_model() -> None:
    world = World(slots=4)
    world.has("a", copy("x", pinned=True))
    assert world.ask("-1") == []
    assert world.ask("x1") == ["x1@a"], "though the device has no room for a second copy"
    assert world.ask("y1") == []
    assert world.end("x1") == [], "the memory is held again"
    world.has("a", copy("x"))
    assert set(world.running) == {"-1"}


def test_copy_that_was_loaded_a_moment_ago_stays_until_it_was_loaded_long_enough() -> None:
    world = World(min_loaded_s=5.0)
    world.has("a", copy("x", loaded_at=0.0))
    assert world.ask("y1") == []
    assert world.wait() == ["y1@a"]
    assert world.now == 5.0


def test_worker_with_all_its_copies_evicts_one_for_another_even_if_memory_is_left() -> None:
    world = World(slots=2)
    world.has("a", copy("x", 2), copy("z", 2, uses=9.0), most=2)
    assert world.ask("y1", gib=2) == ["y1@a"]
    assert {each.model for each in world.engine.models.on("a")} == {"y", "z"}


def test_sizes_and_times_that_workers_measure_replace_the_guess() -> None:
    world = World()
    world.has("a", copy("x", 3, load_s=2.5))
    assert world.engine.models.estimates.load_s("x") == 2.5
    assert world.engine.models.estimates.of("x").mib == 3 * GIB
    world.ask("x1")
    world.end("x1", after_s=7.0)
    assert world.engine.models.estimates.service_s("x") == 7.0


def test_placement_that_failed_leaves_no_copy_behind() -> None:
    world = World()
    world.engine.handle(events.RequestAdded(task("x1")), 0.0)
    world.tell(events.PlaceFailed("x1"))
    world.tell(events.RequestRemoved("x1"))
    assert world.engine.models.on("a") == []


def test_worker_that_left_takes_its_copies_along() -> None:
    world = World(2)
    world.has("a", copy("x"))
    world.tell(events.NodeRemoved("a"))
    assert world.ask("x1") == ["x1@b"]


def test_end_of_a_request_costs_little_however_many_models_are_waited_for(scale: Scale) -> None:
    count = scale(test=1000, accept=10_000)
    world = World(4)
    for start in range(0, count, 500):
        world.tell(*[events.RequestAdded(replace_model(number)) for number in range(start, start + 500)])
    before = world.engine.cluster.rows_judged
    for key in list(world.running):
        world.end(key)
    assert world.engine.cluster.rows_judged - before <= 4 * (count // 16 + 20)
    assert len(world.running) == 4


def replace_model(number: int) -> Request:
    known = task(f"m{number}")
    return replace(known, shape=replace(known.shape, model=f"m{number}"))


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_memory_is_never_given_twice_and_nobody_waits_while_a_worker_is_free(seed: int) -> None:
    chance = random.Random(seed)
    world = World(
        3, slots=2, max_wait_s=chance.choice([0.0, 5.0, 60.0]), most_passed=chance.choice([0, 3, 24])
    )
    asked: dict[str, int] = {}
    for number in range(40):
        draw = chance.random()
        if draw < 0.5:
            key = f"{chance.choice('xyz-')}{number}"
            asked[key] = gib = chance.choice([4, 10, 16])
            world.ask(key, gib=gib, tenant=chance.choice("uv"), priority=chance.choice([0, 50, 80]))
        elif draw < 0.8 and world.running:
            world.end(chance.choice(sorted(world.running)), after_s=chance.uniform(0, 3))
        elif draw < 0.9:
            copies = [copy(model, 6, pinned=chance.random() < 0.3) for model in chance.sample("xyz", 2)]
            world.has(chance.choice("abc"), *copies)
        else:
            world.tell(events.Tick(), after_s=chance.uniform(0, 3))
        for name in "abc":
            held = [each for each in world.running.values() if each.node == name]
            assert sum(each.memory_mib for each in held) <= 24 * GIB
            assert len(held) <= 2
    for name in "abc":
        world.has(name)
    for _ in range(2000):
        if world.running:
            world.end(min(world.running))
        elif world.engine.has_waiting:
            world.wait()
    assert not world.engine.has_waiting
    assert len(world.began) == len(asked)


def test_device_with_a_busy_copy_gets_no_second_one_however_much_room_it_has() -> None:
    world = World(slots=4)
    assert world.ask("x1", gib=4) == ["x1@a"]
    assert world.ask("x2", "x3", gib=4) == []
    assert world.ask("y1", gib=4) == ["y1@a"]
    assert world.end("x1") == ["x2@a"]
    world = World(slots=4, gpus=2)
    world.ask("x1", gib=4)
    (copy_,) = world.engine.models.on("a")
    for _ in range(200):
        if world.ask("x2", gib=4) or world.wait():
            break
    (other,) = (each for each in world.engine.models.on("a") if each != replace(copy_, busy=True))
    assert other.devices != copy_.devices


def test_model_without_devices_runs_one_request_at_a_time_on_a_worker() -> None:
    world = World(2, slots=4)
    asked = [replace(task(key), shape=shape_without_gpus()) for key in ("x1", "x2", "x3")]
    assert world.tell(*[events.RequestAdded(each) for each in asked]) == ["x1@a", "x2@b"]
    assert world.end("x2") == ["x3@b"]


def shape_without_gpus() -> Shape:
    return Shape(gpus=0, milli=0, resources=(("slots", 1),), model="x")


def test_model_that_waits_for_a_slot_is_loaded_ahead_where_it_has_room() -> None:
    world = World()
    world.ask("x1", gib=10)
    assert world.ask("y1", "z1", gib=10) == []
    (ahead,) = world.engine.preloads(8)
    assert (ahead.request.key, ahead.placement.node) == ("y1", "a")
    assert world.engine.preloads(8) == [], "there is no room for a third"
    assert world.engine.preloads(8, but=["z"]) == []
    assert world.end("x1") == ["y1@a"], "it waits no more for a load"
    assert world.engine.models.estimates.of("y").load_s is None, "an expected load is not a measured one"


def test_model_is_not_loaded_ahead_in_the_place_of_another_or_of_unknown_size() -> None:
    world = World()
    world.has("a", copy("x", 16))
    world.ask("x1")
    assert world.ask("y1", gib=16) == []
    assert world.engine.preloads(8) == []
    whole = replace(task("w1"), shape=replace(task("w1").shape, exclusive=True, milli=1000))
    world.tell(events.RequestAdded(whole))
    assert world.engine.preloads(8) == []
