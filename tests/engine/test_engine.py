"""What the engine does with events, one scenario each. Time is an argument."""

import random
from typing import Any

import numpy as np
import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.pod_rules import Neighbour, PodRules, PodSelector, PodTerm, Spread
from gpu_orchestrator.core.policy import Policy, Strategy
from gpu_orchestrator.core.request import Expression, Request, Toleration
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    NodeRemoved,
    NodeUpdated,
    Place,
    Placed,
    PlaceFailed,
    PlacementObserved,
    Refuse,
    RequestAdded,
    RequestRemoved,
    RoomReady,
    Tick,
)
from gpu_orchestrator.engine.neighbour_watch import FEW
from gpu_orchestrator.engine.order import PriorityThenTime
from gpu_orchestrator.policies.registry import Registry, UnknownPolicy
from tests.support.builders import node, request, whole

REGISTRY = Registry()


class World:
    """An engine, a clock, and short ways to say things to it."""

    def __init__(self, *nodes: Node, **options: Any) -> None:
        self.engine = Engine(options.pop("policy_of", REGISTRY.policy_of), random.Random(1), **options)
        self.now = 0.0
        for each in nodes:
            self.tell(NodeUpdated(each))

    def tell(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        return self.engine.handle(event, self.now)

    def ask(self, *requests: Request) -> list[Action]:
        return [action for each in requests for action in self.tell(RequestAdded(each))]


def placed(actions: list[Action]) -> list[str]:
    """Keys of what is to be placed, in order; nothing else may be among the actions but refusals."""
    return [action.request.key for action in actions if isinstance(action, Place)]


def refused(actions: list[Action]) -> list[str]:
    return [action.request.key for action in actions if isinstance(action, Refuse)]


def test_request_that_fits_is_placed_at_once_and_held_after_placed() -> None:
    world = World(node("a", 2))
    assert world.ask(request("p")) == [Place(request("p"), whole("p", "a", 0))]
    assert world.engine.state_of("p") == "in flight"
    assert world.tell(Placed("p")) == []
    assert world.engine.state_of("p") == "held"
    assert world.engine.deadline(world.now) is None


def test_capacity_in_flight_is_not_given_again() -> None:
    world = World(node("a", 1))
    actions = world.ask(request("p"), request("q"))
    assert (placed(actions), refused(actions)) == (["p"], ["q"])
    assert isinstance(actions[1], Refuse)
    assert actions[1].refusal.message == "0/1 nodes fit: 1 has no wholly free GPU"


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(RequestRemoved("p"), id="a holder ended"),
        pytest.param(NodeUpdated(node("b", 1)), id="a node came"),
        pytest.param(NodeUpdated(node("a", 2)), id="a node grew"),
    ],
)
def test_helpful_event_wakes_parked_requests_at_once(event: Event) -> None:
    world = World(node("a", 1))
    world.ask(request("p"))
    world.tell(Placed("p"))
    world.ask(request("q"))
    assert world.engine.state_of("q") == "parked"
    assert placed(world.tell(event)) == ["q"]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Tick(), id="time"),
        pytest.param(NodeUpdated(node("b", 1)), id="too small a node"),
        pytest.param(NodeUpdated(node("b", 8, ready=False)), id="a node that is not ready"),
        pytest.param(RequestRemoved("small"), id="too little became free"),
        pytest.param(RequestRemoved("unknown"), id="an unknown request ended"),
        pytest.param(NodeRemoved("a"), id="a node left"),
    ],
)
def test_event_that_cannot_help_wakes_no_request(event: Event) -> None:
    world = World(node("a", 2))
    world.ask(request("small"), request("large", 2))
    world.tell(Placed("small"))
    world.ask(request("other", 1))
    world.tell(Placed("other"))
    assert world.tell(event) == []
    assert world.engine.state_of("large") == "parked"


def test_node_that_becomes_ready_while_full_helps_once_it_has_room() -> None:
    """It could not help when it was seen, but a release on it can."""
    world = World(node("a", 1, ready=False))
    world.tell(PlacementObserved(whole("p", "a", 0)))
    world.ask(request("q"))
    assert world.tell(NodeUpdated(node("a", 1))) == []
    assert placed(world.tell(RequestRemoved("p"))) == ["q"]


def test_failed_placing_rests_one_second_then_two_then_at_most_ten() -> None:
    world = World(node("a", 1))
    world.ask(request("p"))
    for delay in (1, 2, 4, 8, 10, 10):
        assert world.tell(PlaceFailed("p")) == []
        assert world.engine.deadline(world.now) == world.now + delay
        assert world.tell(Tick(), after_s=delay - 0.01) == []
        assert placed(world.tell(Tick(), after_s=0.01)) == ["p"]


def test_capacity_of_a_failed_placing_goes_to_the_next_request() -> None:
    world = World(node("a", 1))
    world.ask(request("p"), request("q", resources={}))
    assert placed(world.tell(PlaceFailed("p"))) == ["q"]
    assert world.engine.state_of("p") == "resting"
    assert refused(world.tell(Tick(), after_s=1)) == ["p"]


def test_latest_version_of_a_request_counts_when_its_placing_fails() -> None:
    world = World(node("a", 8))
    world.ask(request("p", 1))
    assert world.ask(request("p", 4)) == []
    with pytest.raises(UnknownPolicy):
        world.ask(request("p", 2, strategy="best"))
    assert world.tell(PlaceFailed("p")) == []
    again = world.tell(Tick(), after_s=1)
    assert again == [Place(request("p", 4), whole("p", "a", 0, 1, 2, 3))]
    assert world.tell(PlaceFailed("p")) == []
    assert world.engine.deadline(world.now) == world.now + 2, "its failures are remembered"


def test_higher_priority_first_then_the_earliest() -> None:
    world = World(max_in_flight=1)
    world.ask(request("late"), request("later"), request("urgent", priority=9))
    assert world.engine.counts()["parked"] == 3
    order = []
    actions = world.tell(NodeUpdated(node("a", 8)))
    while placed(actions):
        order += placed(actions)
        actions = world.tell(Placed(order[-1]))
    assert order == ["urgent", "late", "later"]


def test_max_in_flight_lets_urgent_requests_go_first() -> None:
    world = World(node("a", 8), max_in_flight=2)
    assert placed(world.ask(request("p"), request("q"), request("r"))) == ["p", "q"]
    assert world.ask(request("urgent", priority=1)) == []
    assert placed(world.tell(Placed("p"))) == ["urgent"]
    assert placed(world.tell(PlaceFailed("q"))) == ["r"]


def test_requests_that_take_long_do_not_hold_up_the_others() -> None:
    world = World(node("a", 8), max_in_flight=1)
    assert placed(world.ask(request("slow"))) == ["slow"]
    assert placed(world.ask(request("p"), request("q"))) == []
    world.engine.takes_long("slow")
    world.engine.takes_long("unknown")
    assert world.engine.deadline(world.now) == world.now
    assert placed(world.tell(Tick())) == ["p"]
    assert placed(world.tell(PlaceFailed("slow"))) == []
    assert placed(world.tell(Placed("p"))) == ["q"]
    assert placed(world.tell(Tick(), after_s=1)) == []  # it takes its turn like any other again
    assert placed(world.tell(Placed("q"))) == ["slow"]


def test_max_decisions_bounds_one_call_and_sets_deadline_to_now() -> None:
    world = World(max_decisions=1)
    world.ask(request("p"), request("q", 2))
    assert placed(world.tell(NodeUpdated(node("a", 8)))) == ["p"]
    assert world.engine.deadline(world.now) == world.now
    assert placed(world.tell(Tick())) == ["q"]
    assert world.engine.deadline(world.now) is None


def test_only_as_many_equal_requests_wake_as_fit() -> None:
    """A thousand wait for one GPU each. One decision finds that out, and each release costs two, not a
    thousand."""
    decided = 0

    def counting(asked: Request) -> Policy:
        return policy

    def opinion(offers: Any) -> Any:
        nonlocal decided
        decided += 1
        return np.zeros(len(offers))

    policy = Policy(Strategy("counting", ((1.0, opinion),)), REGISTRY.policy().allocate)
    world = World(node("a", 1), policy_of=counting)
    world.ask(*(request(f"p{i:04}") for i in range(1000)))
    assert (world.engine.counts()["in flight"], world.engine.counts()["parked"]) == (1, 999)
    decided = 0
    assert placed(world.tell(PlaceFailed("p0000"))) == ["p0001"]
    world.tell(Placed("p0001"))
    assert placed(world.tell(RequestRemoved("p0001"))) == ["p0002"]
    assert decided <= 4


def test_removed_request_leaves_its_offer_to_the_next_equal_one() -> None:
    """q was offered a node and is held up by the limit; when it leaves, r must not sleep on."""
    world = World(node("a", 1), max_in_flight=2)
    world.ask(request("p"), request("q"), request("r"), request("no-gpu", 0))
    world.tell(NodeUpdated(node("b", 1)))
    assert (world.engine.state_of("q"), world.engine.state_of("r")) == ("parked", "parked")
    world.tell(RequestRemoved("q"))
    assert placed(world.tell(Placed("p"))) == ["r"]


def test_request_removed_in_flight_is_released_after_placing() -> None:
    world = World(node("a", 1))
    world.ask(request("p"), request("q"))
    assert world.tell(RequestRemoved("p")) == []
    assert placed(world.tell(Placed("p"))) == ["q"]
    assert world.engine.state_of("p") is None


@pytest.mark.parametrize("outcome", [Placed("p"), PlaceFailed("p")])
def test_request_removed_and_added_in_flight_is_a_new_request(outcome: Event) -> None:
    world = World(node("a", 1), node("b", 2))
    world.ask(request("p"))
    world.tell(RequestRemoved("p"))
    assert world.ask(request("p", 2)) == []
    actions = world.tell(outcome)
    assert placed(actions) == ["p"]
    assert isinstance(actions[0], Place)
    assert actions[0].placement.node == "b"
    assert len(actions[0].placement.devices) == 2


def test_observed_placement_replaces_the_assumed_one() -> None:
    """We wanted p on device 0; in truth it is on device 1, and so it is not ours to place any more."""
    world = World(node("a", 2))
    world.ask(request("p"))
    world.tell(PlacementObserved(whole("p", "a", 1)))
    assert world.engine.cluster.held_on("a") == {"p": whole("p", "a", 1)}
    assert world.tell(PlaceFailed("p")) == []
    assert world.engine.state_of("p") == "held"
    world.ask(request("p"))
    assert world.engine.counts()["held"] == 1


def test_waiting_request_placed_by_another_scheduler_leaves_the_queue() -> None:
    world = World(node("a", 1))
    world.ask(request("p"), request("q"))
    assert world.tell(PlacementObserved(whole("q", "b", 0))) == []
    assert world.engine.state_of("q") == "held"


def test_node_that_comes_back_has_its_placements_again() -> None:
    world = World(node("a", 2))
    world.tell(PlacementObserved(whole("p", "a", 0)))
    world.tell(NodeRemoved("a"))
    world.tell(NodeUpdated(node("a", 2)))
    assert world.engine.cluster.held_on("a") == {"p": whole("p", "a", 0)}


def test_placements_can_be_observed_before_their_node() -> None:
    world = World()
    world.tell(PlacementObserved(whole("p", "a", 0)))
    world.tell(NodeUpdated(node("a", 1)))
    assert world.engine.cluster.free_gpus("a") == 0
    world.tell(PlacementObserved(Placement("p", "a", unnamed=1)))
    world.tell(RequestRemoved("p"))
    assert world.engine.cluster.free_gpus("a") == 1


def test_equal_request_changes_nothing_and_a_different_one_replaces_it() -> None:
    world = World(node("a", 1))
    world.ask(request("p", 4))
    assert world.ask(request("p", 4)) == []
    assert placed(world.ask(request("p", 1))) == ["p"]


def test_why_explains_a_waiting_request_as_of_now() -> None:
    world = World(node("a", 1))
    world.ask(request("p", 2))
    world.tell(NodeUpdated(node("b", 1, ready=False)))
    why = world.engine.why("p")
    assert why is not None
    assert why.message == "0/2 nodes fit: 1 has fewer than 2 free GPUs, 1 not ready"
    assert world.engine.why("unknown") is None


def test_unknown_strategy_raises_and_changes_nothing() -> None:
    world = World(node("a", 1))
    with pytest.raises(UnknownPolicy, match="unknown strategy 'best'"):
        world.ask(request("p", strategy="best"))
    assert world.engine.state_of("p") is None


def test_strategy_that_raises_does_not_delay_other_requests() -> None:
    broken = Strategy("broken", ((1.0, lambda offers: np.full(len(offers), np.nan)),))
    registry = Registry().with_plugins([("broken", lambda: broken)])
    world = World(node("a", 1), policy_of=registry.policy_of)
    actions = world.ask(request("p", strategy="broken"), request("q"))
    assert (refused(actions), placed(actions)) == (["p"], ["q"])
    assert world.engine.state_of("p") == "resting"


def _breaks_for_two(offers: Any) -> Any:
    if offers.shape.gpus == 2:
        raise KeyError("price")
    return np.zeros(len(offers))


BREAKS_FOR_TWO = Policy(Strategy("fragile", ((1.0, _breaks_for_two),)), REGISTRY.policy().allocate)


def test_any_policy_exception_refuses_only_its_request() -> None:
    world = World(node("a", 8), policy_of=lambda _: BREAKS_FOR_TWO)
    actions = world.engine.handle_all(
        [RequestAdded(request("one")), RequestAdded(request("two", 2)), RequestAdded(request("three"))],
        now=0.0,
    )
    assert (placed(actions), refused(actions)) == (["one", "three"], ["two"])
    assert isinstance(actions[1], Refuse)
    assert actions[1].refusal.message == "0/1 nodes fit: could not be judged: KeyError: 'price'"
    assert world.engine.state_of("two") == "resting"
    assert world.engine.why("two") == actions[1].refusal
    assert world.engine.cluster.free_gpus("a") == 6
    assert refused(world.tell(Tick(), after_s=1)) == ["two"], "it is tried again"


def test_order_that_raises_sets_nothing_aside() -> None:
    class Priceless(PriorityThenTime):
        def cost(self, request: Request) -> float:
            raise ZeroDivisionError

    world = World(node("a", 1), order=Priceless())
    assert refused(world.ask(request("p"))) == ["p"]
    assert world.engine.state_of("p") == "resting"
    assert world.engine.cluster.free_gpus("a") == 1


def test_policy_that_recovers_is_asked_about_all_nodes_again() -> None:
    """It broke while all nodes were looked at, because there had come more than there was room for."""
    broken = False

    def moody(offers: Any) -> Any:
        if broken:
            raise KeyError("price")
        return np.zeros(len(offers))

    policy = Policy(Strategy("moody", ((1.0, moody),)), REGISTRY.policy().allocate)
    world = World(*(node(f"n{i}", 1) for i in range(16)), policy_of=lambda _: policy)
    world.ask(*(request(f"p{i}") for i in range(15)))
    broken = True
    world.tell(NodeUpdated(node("more", 1, ready=False)))
    assert refused(world.ask(request("q"))) == ["q"]
    broken = False
    assert placed(world.tell(Tick(), after_s=1)) == ["q"]


def test_handle_all_refuses_a_bad_request_and_takes_in_the_rest() -> None:
    world = World(node("a", 1))
    world.tell(PlacementObserved(whole("h", "a", 0)))
    actions = world.engine.handle_all(
        [RequestAdded(request("bad", strategy="best")), RequestAdded(request("good")), RequestRemoved("h")],
        now=0.0,
    )
    assert (refused(actions), placed(actions)) == (["bad"], ["good"])
    assert isinstance(actions[0], Refuse)
    assert "UnknownPolicy: unknown strategy 'best'" in actions[0].refusal.message
    assert world.engine.state_of("bad") is None


def test_handle_all_raises_for_a_broken_event_after_taking_in_the_rest() -> None:
    world = World(node("a", 1))
    world.tell(PlacementObserved(whole("h", "a", 0)))
    nothing: Any = None
    with pytest.raises(AttributeError):
        world.engine.handle_all(
            [NodeUpdated(nothing), RequestAdded(request("p")), RequestRemoved("h")], now=0.0
        )
    assert world.engine.state_of("h") is None
    assert placed(world.tell(Tick())) == ["p"]


def test_request_for_an_unknown_resource_wakes_when_a_node_offers_it() -> None:
    world = World(node("a", 1))
    world.ask(request("p", resources={"nic": 2}), request("q", resources={"nic": 1, "other": 1}))
    assert world.tell(NodeUpdated(node("b", 1, resources={"other": 1}))) == []
    assert world.tell(NodeUpdated(node("c", 1, resources={"nic": 1}))) == []
    assert placed(world.tell(NodeUpdated(node("d", 1, resources={"nic": 2})))) == ["p"]
    assert placed(world.tell(NodeUpdated(node("b", 1, resources={"nic": 1, "other": 1})))) == ["q"]


def near(app: str, key: str) -> Request:
    """Return a request that must be on the host of a pod of this app."""
    pods = PodSelector(("default",), (Expression("app", "In", (app,)),))
    return request(key, rules=PodRules(together=(PodTerm("host", pods),)))


def pod_of(app: str, key: str, where: str) -> PlacementObserved:
    return PlacementObserved(Placement(key, where, neighbour=Neighbour("default", {"app": app})))


def test_pod_that_comes_wakes_the_requests_that_wait_for_it() -> None:
    world = World(node("a", 2, labels={"host": "a"}), node("b", 2, labels={"host": "b"}))
    assert refused(world.ask(near("x", "p"), near("y", "q"))) == ["p", "q"]
    assert placed(world.tell(pod_of("x", "pod", "b"))) == ["p"]
    assert world.engine.why("q") is not None


def test_many_different_requests_that_a_pod_helps_are_looked_at_a_few_at_a_time() -> None:
    world = World(node("a", 64, labels={"host": "a"}))
    pods = PodSelector(("default",), (Expression("app", "In", ("x",)),))
    rules = PodRules(together=(PodTerm("host", pods),))
    for number in range(40):
        world.ask(
            request(
                f"r{number}",
                rules=rules,
                labels={"host": "a"},
                memory_mib=0,
                tolerations=(Toleration(f"t{number}"),),
            )
        )
    found = placed(world.tell(pod_of("x", "pod", "a")))
    assert len(found) == FEW
    while world.engine.deadline(world.now) is not None:
        found += placed(world.tell(Tick()))
    assert len(set(found)) == 40


def test_node_that_leaves_helps_a_request_that_it_kept_from_an_even_spread() -> None:
    spread = Spread("host", PodSelector(("default",), (Expression("app", "In", ("x",)),)))
    world = World(node("a", 2, labels={"host": "a"}), node("b", 0, labels={"host": "b"}))
    world.tell(pod_of("x", "pod", "a"))
    assert refused(world.ask(request("p", rules=PodRules(spread=(spread,))))) == ["p"]
    assert placed(world.tell(NodeRemoved("b"))) == ["p"]


def test_room_that_was_kept_goes_to_the_request_it_was_kept_for() -> None:
    """Others of the same priority have waited longer."""
    world = World(node("a", 1))
    world.tell(PlacementObserved(whole("victim", "a", 0)))
    world.ask(request("first", priority=5), request("chosen", 1, priority=5, memory_mib=0))
    world.tell(PlacementObserved(whole("room/chosen", "a", 0)))
    assert placed(world.tell(RequestRemoved("victim"))) == []
    assert placed(world.tell(RoomReady(("room/chosen",), "chosen"))) == ["chosen"]


def test_room_for_a_request_that_is_gone_is_free() -> None:
    world = World(node("a", 1))
    world.tell(PlacementObserved(whole("room/gone", "a", 0)))
    world.ask(request("first"))
    assert placed(world.tell(RoomReady(("room/gone",), "gone"))) == ["first"]
